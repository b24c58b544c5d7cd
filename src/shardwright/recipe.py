"""What a sample consists of: a recipe is a value that is passed, and that a store holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shardwright.buckets import Bucket, nearest

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
    """Which tokens of a caption count: zeros and ones in the record, an array in a shard."""

    field: str  # of the record
    suffix: str  # of its tar member
    length: int
    dtype: str = "|u1"

    @property
    def array(self) -> Component:
        """Give what it is in a shard: an array like any other, but without a folder."""
        return Component("mask", "", self.suffix, self.dtype, (self.length,))


@dataclass(frozen=True)
class Component:
    """An array that every sample has, one ``.npy`` file each in a folder of its own."""

    name: str
    folder: str
    suffix: str  # of its tar member; all suffixes are lower-case, as loaders lower-case them
    dtype: str  # as NumPy writes it in a header
    shape: tuple[int | Side, ...]
    inline: tuple[str, ...] = ()  # the fields in which a Stage 1 record may hold it
    source: Literal["image", "caption"] = "image"  # what it is made from
    mask: Mask | None = None  # that its encoder gives with it

    def __hash__(self) -> int:
        return hash(self.name)  # the others follow, and this is asked for each array

    @property
    def follows_picture(self) -> bool:
        """Whether its shape follows the sides of the picture."""
        return any(isinstance(axis, Side) for axis in self.shape)

    @property
    def tokens(self) -> int:
        """Count the tokens that a caption is padded or cut to."""
        axis = self.shape[0] if self.mask is None else self.mask.length
        assert isinstance(axis, int)
        return axis

    @property
    def is_float(self) -> bool:
        """Whether its values are floats, which may fail to be numbers."""
        return self.dtype[1] == "f"

    def accepts(self, shape: Shape) -> bool:
        """Whether an array of this shape can be this component of some picture."""
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
        """Count the bytes of such an array's data."""
        return math.prod(shape) * int(self.dtype[2:])


@dataclass(frozen=True)
class Recipe:
    """All that decides what a sample is; equal recipes make stores and shards of one kind."""

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
        """Name the fields in which a Stage 1 record may hold an array, and its component."""
        return {name: c for c in self.components for name in c.inline}

    @cached_property
    def record_fields(self) -> tuple[str, ...]:
        """Name what a record holds at least, in order; a user's own fields follow."""
        masks = (mask.field for mask in self.masks)
        before, after = ("image_id", "image_path", "caption"), ("height", "width", "aspect_bucket")
        return (*before, *masks, *after, "format_version")

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """Name the members of a sample in the order they stand in a shard."""
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
        """Choose the bucket of a picture of this size."""
        return nearest(width, height, self.buckets)

    def members(self) -> Iterator[Component | Mask]:
        """Give what a sample has beside its record: each component, and its mask after it."""
        for component in self.components:
            yield component
            if component.mask is not None:
                yield component.mask


SPECIFICATION = Recipe(
    components=(
        Component("dinov3", "dinov3", "dinov3.npy", "<f4", (1024,), ("dinov3_embedding",)),
        Component(
            "vae",
            "vae_latents",
            "vae.npy",
            "<f2",
            (16, Side("height", 8), Side("width", 8)),
            ("vae_latent", "vae_latents", "vae_embedding"),
        ),
        Component(
            "t5",
            "t5_hidden",
            "t5h.npy",
            "<f2",
            (77, 1024),
            ("t5_hidden", "t5_hidden_state", "t5_hidden_states", "t5_embedding"),
            source="caption",
            mask=Mask("t5_attention_mask", "t5m.npy", 77),
        ),
    ),
    buckets=(
        Bucket(1024, 1024),
        Bucket(832, 1216),
        Bucket(1216, 832),
        Bucket(768, 1280),
        Bucket(1280, 768),
        Bucket(704, 1344),
        Bucket(1344, 704),
    ),
)
