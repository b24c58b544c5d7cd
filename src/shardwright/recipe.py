"""What a sample consists of: a recipe, which is passed as a value and stored with the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shardwright.buckets import Bucket

FORMAT_VERSION = 2
JSON_SUFFIX = "json"
LONGEST_NAME = 100  # of a tar member: the USTAR name field, beyond which some loaders see nothing

# What the .json member of every sample holds at least, so that its keys never vary.
MEMBER_FIELDS = ("image_id", "aspect_bucket", "caption", "image_path", "height", "width")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """An array axis that follows a side of the picture: ``side // divisor``."""

    of: Literal["width", "height"]
    divisor: int


@dataclass(frozen=True)
class Mask:
    """Which tokens of a caption count: a list of 0 and 1 in the record, an array in a shard."""

    field: str  # of the record
    suffix: str  # of its tar member
    length: int
    dtype: str = "|u1"

    @property
    def array(self) -> Component:
        """Give the array that it is in a shard; it has no folder."""
        return Component("mask", "", self.suffix, self.dtype, (self.length,))


@dataclass(frozen=True)
class Component:
    """An array that every sample has; each component has a folder of ``.npy`` files."""

    name: str
    folder: str
    suffix: str  # of its tar member; all suffixes are lower-case, as loaders lower-case them
    dtype: str  # as NumPy writes it in a header
    shape: tuple[int | Side, ...]
    inline: tuple[str, ...] = ()  # the fields in which a Stage 1 record may hold it
    source: Literal["image", "caption"] = "image"  # what it is made from
    mask: Mask | None = None  # that its encoder returns with it

    def __hash__(self) -> int:
        return hash(self.name)  # enough to tell them apart, and quick

    @property
    def follows_picture(self) -> bool:
        """Whether its shape follows the sides of the picture."""
        return any(isinstance(axis, Side) for axis in self.shape)

    @property
    def tokens(self) -> int:
        """The number of tokens that a caption is padded or cut to."""
        axis = self.shape[0] if self.mask is None else self.mask.length
        assert isinstance(axis, int)
        return axis

    @property
    def is_float(self) -> bool:
        """Whether its values are floats, which may be NaN or infinite."""
        return self.dtype[1] == "f"

    def accepts(self, shape: Shape) -> bool:
        """Whether this shape is possible for some picture."""
        return len(shape) == len(self.shape) and all(
            have >= 1 if isinstance(want, Side) else have == want
            for have, want in zip(shape, self.shape, strict=True)
        )

    def shape_for(self, width: int, height: int) -> Shape:
        """Give the exact shape for a picture of this size."""
        sides = {"width": width, "height": height}
        return tuple(
            sides[axis.of] // axis.divisor if isinstance(axis, Side) else axis
            for axis in self.shape
        )

    def nbytes(self, shape: Shape) -> int:
        """Count the data bytes of an array of this shape."""
        return math.prod(shape) * int(self.dtype[2:])


@dataclass(frozen=True)
class Recipe:
    """The components and buckets of a dataset; its stores and shards share one recipe."""

    components: tuple[Component, ...]
    buckets: tuple[Bucket, ...]

    @cached_property
    def masks(self) -> tuple[Mask, ...]:
        """Give the masks, in the order of their components."""
        return tuple(c.mask for c in self.components if c.mask is not None)

    @cached_property
    def pictures(self) -> tuple[Component, ...]:
        """Give the components that are made from the picture."""
        return tuple(c for c in self.components if c.source == "image")

    @cached_property
    def captions(self) -> tuple[Component, ...]:
        """Give the components that are made from the caption."""
        return tuple(c for c in self.components if c.source == "caption")

    @cached_property
    def inline(self) -> dict[str, Component]:
        """Map the fields in which a Stage 1 record may hold an array to their components."""
        return {name: c for c in self.components for name in c.inline}

    @cached_property
    def record_fields(self) -> tuple[str, ...]:
        """Name the fields of a record, in order; a user's own fields follow."""
        masks = (mask.field for mask in self.masks)
        before, after = ("image_id", "image_path", "caption"), ("height", "width", "aspect_bucket")
        return (*before, *masks, *after, "format_version")

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """Name the members of a sample, in their order in a shard."""
        return (JSON_SUFFIX, *(row.suffix for row in self.members()))

    @cached_property
    def longest_key(self) -> int:
        """Count the bytes that a sample's key may have, so that every member's name fits."""
        return LONGEST_NAME - 1 - max(map(len, self.suffixes))

    @cached_property
    def arrays(self) -> dict[str, Component]:
        """Give the arrays that a sample has in a shard, by the suffix of their member."""
        rows = (row.array if isinstance(row, Mask) else row for row in self.members())
        return {row.suffix: row for row in rows}

    def bucket_for(self, width: int, height: int) -> Bucket:
        """Choose the bucket with the aspect ratio nearest to a picture's; the first on a tie."""
        if width < 1 or height < 1:
            raise ValueError(f"{width}x{height} is not the size of a picture")
        ratio = width / height
        return min(self.buckets, key=lambda bucket: abs(ratio - bucket.width / bucket.height))

    def members(self) -> Iterator[Component | Mask]:
        """Give what a sample has besides its record: each component, followed by its mask."""
        for component in self.components:
            yield component
            if component.mask is not None:
                yield component.mask


_BUCKETS = "1024x1024 832x1216 1216x832 768x1280 1280x768 704x1344 1344x704"
SPECIFICATION = Recipe(
    components=(
        Component("dinov3", "dinov3", "dinov3.npy", "<f4", (1024,), ("dinov3_embedding",)),
        Component(
            *("vae", "vae_latents", "vae.npy", "<f2"),
            shape=(16, Side("height", 8), Side("width", 8)),
            inline=("vae_latent", "vae_latents", "vae_embedding"),
        ),
        Component(
            *("t5", "t5_hidden", "t5h.npy", "<f2"),
            shape=(77, 1024),
            inline=("t5_hidden", "t5_hidden_state", "t5_hidden_states", "t5_embedding"),
            source="caption",
            mask=Mask("t5_attention_mask", "t5m.npy", 77),
        ),
    ),
    buckets=tuple(map(Bucket.parse, _BUCKETS.split())),
)
