"""The one table of what a sample consists of: everything else reads it, nothing repeats it.

To add a component, add a row to ``COMPONENTS``. Scanning, packing and verifying follow from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

FORMAT_VERSION = 2
JSONL_NAME = "approved_image_dataset.jsonl"
STATE_FOLDER = ".shardwright"  # hidden, because loaders open every visible file of a shard folder

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """An array axis that follows a side of the picture: ``side // divisor``."""

    of: Literal["width", "height"]
    divisor: int


@dataclass(frozen=True, eq=False)  # a row of the table is itself, which also hashes fast
class Component:
    """An array that every sample has, one ``.npy`` file each in a folder of its own."""

    name: str
    folder: str
    suffix: str  # of its tar member; all suffixes are lower-case, as loaders lower-case them
    dtype: str  # as NumPy writes it in a header
    shape: tuple[int | Side, ...]
    inline: tuple[str, ...] = ()  # the fields in which a Stage 1 record may hold it
    source: Literal["image", "caption"] = "image"  # what it is made from

    @property
    def follows_picture(self) -> bool:
        """Whether its shape follows the sides of the picture."""
        return any(isinstance(axis, Side) for axis in self.shape)

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


COMPONENTS: tuple[Component, ...] = (
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
    ),
)


@dataclass(frozen=True)
class Mask:
    """The attention mask: a list of 0 and 1 in the record, an array of its own in a shard."""

    field: str
    suffix: str
    dtype: str
    length: int


MASK = Mask("t5_attention_mask", "t5m.npy", "|u1", 77)
JSON_SUFFIX = "json"

# What a record of the JSONL holds at least, in this order; a user's own fields follow.
RECORD_FIELDS = (
    "image_id",
    "image_path",
    "caption",
    MASK.field,
    "height",
    "width",
    "aspect_bucket",
    "format_version",
)

# What the .json member of every sample holds at least, so that its keys never vary.
MEMBER_FIELDS = ("image_id", "aspect_bucket", "caption", "image_path", "height", "width")


def suffixes() -> tuple[str, ...]:
    """Name the members of a sample in the order they stand in a shard."""
    return (JSON_SUFFIX, *(component.suffix for component in COMPONENTS), MASK.suffix)
