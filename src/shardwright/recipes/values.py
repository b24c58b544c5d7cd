"""What a sample consists of: a recipe, which is passed as a value and stored with the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from shardwright.buckets import Bucket, choose

FORMAT_VERSION = 2
JSON_SUFFIX = "json"
LONGEST_NAME = 100  # of a tar member: the USTAR name field, beyond which some loaders see nothing

# What the .json member of every sample holds at least, so that its keys never vary.
MEMBER_FIELDS = ("image_id", "aspect_bucket", "caption", "image_path", "height", "width")

Shape = tuple[int, ...]

# NumPy has no bfloat16: an array holds the upper half of each float32 as an integer.
BFLOAT16 = "bfloat16"
DTYPES = {  # as a recipe file names them, and as an array has them
    "float16": "<f2",
    BFLOAT16: BFLOAT16,
    "float32": "<f4",
    "float64": "<f8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
ANY: Literal["any"] = "any"  # an axis of any length, at least 1
PICTURES = ("jpg", "png", "webp")  # what the suffix of a picture ends with; of an array, "npy"


@dataclass(frozen=True)
class Side:
    """An array axis that follows a side of the picture: ``side // divisor``."""

    of: Literal["width", "height"]
    divisor: int

    def __str__(self) -> str:
        return self.of if self.divisor == 1 else f"{self.of}/{self.divisor}"


class Map(NamedTuple):
    """How an array lies over the picture: its two axes that follow the sides, and its blocks."""

    places: tuple[int, int]  # of the axes along the height and along the width
    down: int  # pixels of a block
    across: int


PIXELS = (Side("height", 1), Side("width", 1), 3)  # the shape of a picture


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
    """A file that every sample has; each component has a folder of them, mostly ``.npy``."""

    name: str
    folder: str
    suffix: str  # of its tar member; all suffixes are lower-case, as loaders lower-case them
    dtype: str  # as NumPy writes it in a header, or "bfloat16"; "" until its encoder is asked
    shape: tuple[int | Side | Literal["any"], ...]  # () until its encoder is asked
    inline: tuple[str, ...] = ()  # the fields in which a Stage 1 record may hold it
    source: Literal["image", "caption", "elsewhere"] = "image"  # what it is made from, or where
    mask: Mask | None = None  # that its encoder returns with it
    field: str = "caption"  # of the record: the text that it is made from
    trim: bool = False  # its first axis holds only the tokens that the mask keeps
    encoder: str | None = None  # a shipped one, or "package.module:Class"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of its encoder: a model …

    def __hash__(self) -> int:
        return hash(self.name)  # enough to tell them apart, and quick

    @property
    def is_known(self) -> bool:
        """Whether its dtype and shape are known; a recipe file may leave them to the encoder."""
        return bool(self.dtype and self.shape)

    @property
    def dtype_text(self) -> str:
        """Write its dtype as a recipe file does."""
        return _NAMES.get(self.dtype, self.dtype)

    @property
    def shape_text(self) -> tuple[int | str, ...]:
        """Write its shape as a recipe file does."""
        return tuple(axis if isinstance(axis, int) else str(axis) for axis in self.shape)

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Name its tar members by their suffixes: its own, then that of its mask."""
        return (self.suffix,) if self.mask is None else (self.suffix, self.mask.suffix)

    @cached_property
    def extension(self) -> str:
        """The end of its file names, with the dot."""
        return "." + self.suffix.rpartition(".")[2]

    @cached_property
    def is_array(self) -> bool:
        """Whether its files are ``.npy`` files, and not pictures."""
        return self.extension[1:] not in PICTURES

    @cached_property
    def follows_picture(self) -> bool:
        """Whether its shape follows the sides of the picture."""
        return any(isinstance(axis, Side) for axis in self.shape)

    @cached_property
    def map(self) -> Map | None:
        """How it lies over the picture: an array with one axis along each side of it, or None."""
        sides = [(s.of, n, s.divisor) for n, s in enumerate(self.shape) if isinstance(s, Side)]
        if not self.is_array or sorted(of for of, *_ in sides) != ["height", "width"]:
            return None
        (_, rows, down), (_, columns, across) = sorted(sides)
        return Map((rows, columns), down, across)

    @property
    def tokens(self) -> int:
        """The number of tokens that a caption is padded or cut to."""
        if self.mask is not None:
            return self.mask.length
        found = self.settings.get("tokens", self.shape[0])
        assert isinstance(found, int)
        return found

    @cached_property
    def header_dtype(self) -> str:
        """The dtype in the header of its files."""
        return "<u2" if self.dtype == BFLOAT16 else self.dtype

    @cached_property
    def is_float(self) -> bool:
        """Whether its values are floats, which may be NaN or infinite."""
        return self.dtype == BFLOAT16 or self.dtype[1] == "f"

    @property
    def is_never_constant(self) -> bool:
        """Whether one value everywhere is damage: in floats that an encoder made."""
        return self.is_float and self.encoder is not None

    def accepts(self, shape: Shape) -> bool:
        """Whether this shape is possible for some picture and some caption."""
        return self._fits(shape, {})

    @lru_cache(maxsize=4096)  # noqa: B019 - bounded, and asked for every array of a dataset
    def fits(self, shape: Shape, width: int, height: int) -> bool:
        """Whether this shape is possible for a picture of this size."""
        return self._fits(shape, {"width": width, "height": height})

    def _fits(self, shape: Shape, sides: dict[str, int]) -> bool:
        if len(shape) != len(self.shape):
            return False
        for number, (have, want) in enumerate(zip(shape, self.shape, strict=True)):
            if isinstance(want, int):
                if not (1 <= have <= want if self.trim and number == 0 else have == want):
                    return False
            elif have < 1 or (
                isinstance(want, Side) and sides and have != sides[want.of] // want.divisor
            ):
                return False
        return True

    def shape_for(self, width: int, height: int) -> Shape:
        """Give the shape for a picture of this size; the largest if trimmed, 1 for a free axis."""
        sides = {"width": width, "height": height}
        return tuple(
            axis
            if isinstance(axis, int)
            else sides[axis.of] // axis.divisor
            if isinstance(axis, Side)
            else 1
            for axis in self.shape
        )

    @property
    def least_bytes(self) -> int:
        """Count the data bytes that its files have at least, for any picture and caption."""
        axes = [axis if isinstance(axis, int) else 1 for axis in self.shape]
        return self.nbytes((1, *axes[1:]) if self.trim else tuple(axes)) if self.is_array else 1

    def nbytes(self, shape: Shape) -> int:
        """Count the data bytes of an array of this shape."""
        return math.prod(shape) * int(self.header_dtype[2:])


def usual_dtype(shape: Sequence[object]) -> str:
    """Give the dtype of a component whose recipe does not choose one: float32 for a vector."""
    return "" if not shape else "<f4" if len(shape) == 1 else "<f2"


@dataclass(frozen=True)
class Selection:
    """Which images are used at all; the others are counted with the reason."""

    max_upscale: float | None = None  # how much a picture may be enlarged to fill its bucket
    max_crop: float | None = None  # the share of a picture that may be cut away
    min_side: int | None = None  # pixels of its shorter side
    max_tokens_lost: int | None = None  # of its captions, by any component

    def __post_init__(self) -> None:
        if self.max_tokens_lost is None:  # then JSON has no such key, as in earlier versions
            self.__dict__.pop("max_tokens_lost", None)


@dataclass(frozen=True)
class Recipe:
    """The components and buckets of a dataset; its stores and shards share one recipe."""

    components: tuple[Component, ...]
    buckets: tuple[Bucket, ...]
    levels: tuple[int, ...] = ()  # of several resolutions: how many buckets each has, in order
    fit: str = "original"  # or "bucket": how a picture fits the arrays that follow its sides
    selection: Selection = Selection()
    decode: str = "exact"  # or "fast": JPEG files at a smaller scale, where that is enough
    ids: str = "name"  # of the image file; or "path", or "captions": where image ids come from

    def __post_init__(self) -> None:
        if self.ids == "name":  # then JSON has no such key, as in earlier versions
            self.__dict__.pop("ids", None)

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
    def texts(self) -> tuple[str, ...]:
        """Name the record fields that components are made from; a record needs each of them."""
        return tuple(dict.fromkeys(c.field for c in self.captions))

    @cached_property
    def by_name(self) -> dict[str, Component]:
        """Give the components by their names."""
        return {component.name: component for component in self.components}

    @cached_property
    def inline(self) -> dict[str, Component]:
        """Map the fields in which a Stage 1 record may hold an array to their components."""
        return {name: c for c in self.components for name in c.inline}

    @cached_property
    def record_fields(self) -> tuple[str, ...]:
        """Name the fields of a record, in order; a user's own fields follow."""
        texts = dict.fromkeys(("caption", *self.texts))
        masks = (mask.field for mask in self.masks)
        after = ("height", "width", "aspect_bucket", "format_version")
        return ("image_id", "image_path", *texts, *masks, *after)

    @cached_property
    def suffixes(self) -> tuple[str, ...]:
        """Name the members of a sample, in their order in a shard."""
        return (JSON_SUFFIX, *(suffix for c in self.components for suffix in c.members))

    @cached_property
    def longest_key(self) -> int:
        """Count the bytes that a sample's key may have, so that every member's name fits."""
        return LONGEST_NAME - 1 - max(map(len, self.suffixes))

    @cached_property
    def arrays(self) -> dict[str, Component]:
        """Give what a sample has in a shard besides its record, by the suffix of its member."""
        masks = {mask.suffix: mask.array for mask in self.masks}
        arrays = {component.suffix: component for component in self.components} | masks
        return {suffix: arrays[suffix] for suffix in self.suffixes[1:]}

    def bucket_for(self, width: int, height: int) -> Bucket:
        """Choose the bucket of a picture."""
        return choose(self.buckets, self.levels, width, height)

    def override(
        self,
        *,
        fit: str | None,
        models: Mapping[str, str],
        decode: str | None = None,
        ids: str | None = None,
    ) -> Recipe:
        """Give it with the values of flags: another fit, decoding or way to ids, other models."""
        components = tuple(
            dataclasses.replace(c, settings={**c.settings, "model": models[c.name]})
            if c.name in models
            else c
            for c in self.components
        )
        return dataclasses.replace(
            self,
            components=components,
            fit=fit or self.fit,
            decode=decode or self.decode,
            ids=ids or self.ids,
        )
