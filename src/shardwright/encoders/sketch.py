"""The sketch encoders: no weights, no torch, the right shapes, and arrays with a meaning.

They replace the models in the demo, in tests and in trials of training code, for any recipe: what a
component is made from and its shape decide what is made. A latent decodes back to a recognisable
picture, similar pictures have similar descriptors, and captions that share words share rows.
``prepare`` does all work on pictures, one at a time and without BLAS, so that no array depends on
its batch or on the number of threads.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders.base import Box, Encoder, Options, Picture, Prepares, Tokens, pixels
from shardwright.errors import UsageError
from shardwright.recipes import ANY, BFLOAT16, Component, Map, Shape, Side

Numbers = NDArray[Any]
Floats = NDArray[np.floating[Any]]
_Wave = tuple[int, tuple[int, int]]  # luma or a chroma, and its frequency down and across

_VERSION = 1  # raised with any change of the arrays

_SCALE = 32  # brings the coefficients into the range of a model's latents, about -4 to 4
_RANGE = 4
_MIDDLE = {"u": 128, "i": 0}  # what zero is as an integer
_SIDES = (Side("height", 8), Side("width", 8))

_LUMA = (0.299, 0.587, 0.114)
_TO_YCC = (_LUMA, (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))  # as JPEG has it
_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))

_THUMBNAIL, _GRID, _DIRECTIONS, _SHADES = 64, 8, 8, 4
_CELL = 8  # pixels a side of a patch
_MOST_FREE = 4  # the longest free axis

_WORD = re.compile(r"\w+|[^\w\s]")
_VOCABULARY = 32_000
_PADDING, _END, _FIRST_WORD = 0, 1, 2
_TOKENS = 77  # where neither a mask nor a shape says how many


def load(component: Component, options: Options, models: dict[Any, Any]) -> Encoder:
    """Give the sketch of a component."""
    if not component.is_known:
        fix = f"add dtype and shape to [component.{component.name}] in the recipe"
        raise UsageError(f"--encoders sketch: the shape of {component.name} is unknown", fix=fix)
    if component.source == "caption":
        return HashedWords(component)
    if component.source != "image":
        what = f"--encoders sketch: {component.name} is made by another tool"
        raise UsageError(what, fix=f"leave {component.name} out of --components")
    if component.map is not None:
        return BlockTransform(component)
    if len(component.shape) == 2 and all(isinstance(axis, int) for axis in component.shape):
        return Patches(component)
    return Descriptor(component)


def decode(latent: Numbers, component: Component | None = None) -> Picture:
    """Turn a sketched latent back into a coarse picture; without a component, of 8x8 blocks."""
    if component is None:
        component = Component("", "", "", "<f2", (len(latent), *_SIDES))
    layout = _layout(component)
    rows, columns = (latent.shape[place] for place in layout.places)
    channels = np.moveaxis(latent, layout.places, (-2, -1)).reshape(-1, rows, columns)
    planes = np.zeros((3, rows, layout.down, columns, layout.across), np.float32)
    waves = _waves(len(channels), layout.down, layout.across)
    for channel, (plane, (down, across)) in zip(channels, waves, strict=False):
        wave = _cosines(layout.down)[down][:, None, None] * _cosines(layout.across)[across]
        planes[plane] += _floats(channel, component)[:, None, :, None] * (wave * _scale(layout))
    ycc = planes.reshape(3, rows * layout.down, columns * layout.across)
    rgb = np.stack([_weighted(ycc, weights) for weights in _TO_RGB], axis=-1)
    return (rgb + 128).round().clip(0, 255).astype(np.uint8)


class _Sketch:
    device = "cpu"
    model: ClassVar[str]

    def __init__(self, component: Component) -> None:
        self.component = component

    def describe(self) -> dict[str, Any]:
        return {"encoder": "sketch", "model": self.model, "version": _VERSION}

    def _numbers(self, floats: Floats) -> Numbers:
        """Give floats of a model's range as numbers of the component's kind."""
        if self.component.dtype == BFLOAT16:
            return floats
        dtype = np.dtype(self.component.dtype)
        if dtype.kind == "f":
            return floats.astype(np.result_type(dtype, np.float32), copy=False)
        if dtype.kind == "b":
            return floats > 0
        shades = (floats * (127 / _RANGE)).round().clip(-127, 127).astype(np.int64)
        return shades + _MIDDLE[dtype.kind]


class _PictureSketch(Prepares, _Sketch, ABC):
    """Is its own ``preparing``: it has no weights, and can be sent to another process."""

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        self.preparing = self

    def __call__(self, image: Image.Image, box: Box | None = None) -> Numbers:
        """Sketch a picture, or the part of it within the box."""
        return self._numbers(self._sketch(image, box))

    def encode(self, batch: Numbers) -> Numbers:
        return batch  # ``prepare`` has done it

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Give the width and height that a picture of this size may be decoded at."""
        return width, height

    @abstractmethod
    def _sketch(self, image: Image.Image, box: Box | None) -> Floats: ...


class BlockTransform(_PictureSketch):
    """Latents: the lowest frequencies of every block of a picture."""

    model = "block-dct"

    def _sketch(self, image: Image.Image, box: Box | None) -> Floats:
        picture = pixels(image)
        layout = _layout(self.component)
        shape = self.component.shape_for(picture.shape[1], picture.shape[0])
        rows, columns = (shape[place] for place in layout.places)
        picture = picture[: rows * layout.down, : columns * layout.across]
        planes = [_weighted(np.moveaxis(picture, 2, 0), weights) for weights in _TO_YCC]
        planes[0] -= 128
        channels = math.prod(shape) // (rows * columns)
        latent = np.zeros((channels, rows, columns), np.float32)
        waves = _waves(channels, layout.down, layout.across)
        bands: dict[tuple[int, int], Floats] = {}
        for number, (plane, (down, across)) in enumerate(waves):
            if (plane, down) not in bands:
                blocks = planes[plane].reshape(rows, layout.down, columns * layout.across)
                weights = _cosines(layout.down)[down]
                bands[plane, down] = _weighted(np.moveaxis(blocks, 1, 0), weights)
            blocks = bands[plane, down].reshape(rows, columns, layout.across)
            latent[number] = _weighted(np.moveaxis(blocks, 2, 0), _cosines(layout.across)[across])
        others = [length for place, length in enumerate(shape) if place not in layout.places]
        lying = (latent / _scale(layout)).reshape(*others, rows, columns)
        return np.moveaxis(lying, (-2, -1), layout.places)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "scaling_factor": 1.0, "shift_factor": 0.0}


class Descriptor(_PictureSketch):
    """A picture in one vector, or in any shape: its colours and edges by place, and its palette."""

    model = "colours-and-edges"

    def needs(self, width: int, height: int) -> tuple[int, int]:
        follows = self.component.follows_picture
        return (width, height) if follows else (_THUMBNAIL, _THUMBNAIL)

    def _sketch(self, image: Image.Image, box: Box | None) -> Floats:
        thumbnail = _resized(image, box, _THUMBNAIL, _THUMBNAIL)
        small = _centred(thumbnail)
        luma = _weighted(np.moveaxis(small, 2, 0), _LUMA)
        parts = (_pooled(small, _GRID), _pooled(luma, 2 * _GRID), _edges(luma), _palette(small))
        described = np.concatenate([_unit(part.ravel()) for part in parts]).astype(np.float32) / 2
        free = 1 + int(thumbnail.sum(dtype=np.int64)) % _MOST_FREE
        shape = _filled(self.component, free, *image.size)
        return _of_length(described, math.prod(shape)).reshape(shape)


class Patches(_PictureSketch):
    """A row for each cell of a grid over the picture: its colours, and where it is."""

    model = "colours-of-patches"

    def needs(self, width: int, height: int) -> tuple[int, int]:
        count = self.component.shape_for(0, 0)[0]
        rows = max(side for side in range(1, math.isqrt(count) + 1) if count % side == 0)
        return count // rows * _CELL, rows * _CELL

    def _sketch(self, image: Image.Image, box: Box | None) -> Floats:
        count, width = self.component.shape_for(0, 0)
        across, down = self.needs(*image.size)
        rows, columns = down // _CELL, across // _CELL
        small = _centred(_resized(image, box, across, down))
        cells = small.reshape(rows, _CELL, columns, _CELL, 3).swapaxes(1, 2).reshape(count, -1)
        places = np.indices((rows, columns)).reshape(2, count).T / (rows, columns)
        described = np.concatenate([places.astype(np.float32), cells], axis=1)
        return np.stack([_of_length(row, width) for row in described])


class HashedWords(_Sketch):
    """Captions: a row for each word, drawn from the word's hash; of a vector, their mean."""

    model = "hashed-words"

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        said = component.mask or "tokens" in component.settings
        self._tokens = component.tokens if said or type(component.shape[0]) is int else _TOKENS
        self._shape = _filled(component, 1)
        self._has_rows = len(self._shape) > 1 and component.shape[0] in (self._tokens, ANY)
        if self._has_rows:
            self._shape = (self._tokens, *self._shape[1:])

    def prepare(self, caption: str) -> Tokens:
        found = list(_WORD.finditer(caption.lower()))
        words = found[: self._tokens - 1]
        ids = np.full(self._tokens, _PADDING, np.int64)
        ids[: len(words)] = [_word_id(word[0]) for word in words]
        ids[len(words)] = _END
        lost = len(found) - len(words)
        cut_at = None
        if lost:  # a few characters are longer in lower case
            ends = range(len(caption) + 1)
            last = words[-1].end() if words else 0
            cut_at = bisect_left(ends, last, key=lambda at: len(caption[:at].lower()))
        return Tokens(ids, (ids != _PADDING).astype(np.uint8), lost, cut_at)

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8]) -> Numbers:
        width = math.prod(self._shape[1:] if self._has_rows else self._shape)
        drawn = np.stack([[_word_row(word, width) for word in row] for row in ids.tolist()])
        rows = (drawn.astype(np.float32) - 127.5) / 128
        rows[ids == _PADDING] = 0
        if not self._has_rows:
            rows = rows.sum(axis=1) / (ids != _PADDING).sum(axis=1, keepdims=True, dtype=np.float32)
        return self._numbers(rows.reshape(-1, *self._shape))

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        # Of a vector, the shape does not tell how many words it is the mean of.
        return said if self._has_rows else {**said, "output": "mean", "tokens": self._tokens}


def _layout(component: Component) -> Map:
    assert component.map is not None
    return component.map


def _scale(layout: Map) -> float:
    return _SCALE * math.sqrt(layout.down * layout.across)


def _filled(component: Component, free: int, width: int = 0, height: int = 0) -> Shape:
    """Give a shape for a picture of this size, with this length for a free axis."""
    shape = zip(component.shape, component.shape_for(width, height), strict=True)
    return tuple(free if axis == ANY else length for axis, length in shape)


@lru_cache(maxsize=64)
def _waves(channels: int, down: int, across: int) -> tuple[_Wave, ...]:
    """Choose what each channel holds; a block may have fewer frequencies than there are channels.

    Luma comes first, with at least as many frequencies as each chroma; of each, the lowest.
    """
    pairs = sorted(np.ndindex(down, across), key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
    luma = min(channels - channels // 3 * 2, len(pairs))
    blue = min((channels - luma + 1) // 2, len(pairs))
    red = min(channels - luma - blue, len(pairs))
    return tuple(
        (plane, pair) for plane, count in enumerate((luma, blue, red)) for pair in pairs[:count]
    )


@lru_cache(maxsize=16)
def _cosines(length: int) -> tuple[Floats, ...]:
    """Give the rows of the orthonormal DCT-II of a block, lowest frequencies first."""
    rows = []
    for frequency in range(length):
        weight = math.sqrt((2 if frequency else 1) / length)
        angles = [math.pi * frequency * (2 * k + 1) / (2 * length) for k in range(length)]
        rows.append(np.array([weight * math.cos(angle) for angle in angles], np.float32))
    return tuple(rows)


def _resized(image: Image.Image, box: Box | None, width: int, height: int) -> Picture:
    return np.array(image.resize((width, height), Image.Resampling.BOX, box))


def _centred(picture: Picture) -> Floats:
    return picture.astype(np.float32) / np.float32(255) - np.float32(0.5)


def _floats(numbers: Numbers, component: Component) -> Floats:
    """Give back the floats of a model's range; bools have lost all but their sign."""
    floats = numbers.astype(np.float32)
    middle = None if component.is_float else _MIDDLE.get(component.dtype[1])
    return floats if middle is None else (floats - middle) * (_RANGE / 127)


def _of_length(vector: Floats, length: int) -> Floats:
    """Fold a vector onto a shorter one, or repeat it."""
    if length >= len(vector):
        return np.resize(vector, length)
    padded = np.zeros(-(-len(vector) // length) * length, np.float32)
    padded[: len(vector)] = vector
    folded: Floats = padded.reshape(-1, length).sum(axis=0)
    return folded


def _weighted(planes: NDArray[Any], weights: Any) -> Floats:  # noqa: ANN401 - any row of numbers
    """Sum planes by weights, term by term: a matrix product may round by the size of its batch."""
    total: Floats = planes[0] * np.float32(weights[0])
    for plane, weight in zip(planes[1:], weights[1:], strict=True):
        total += plane * np.float32(weight)
    return total


def _pooled(small: Floats, cells: int) -> Floats:
    """Average over the cells of a grid."""
    side = _THUMBNAIL // cells
    grid: Floats = small.reshape(cells, side, cells, side, -1).mean(axis=(1, 3))
    return grid


def _edges(luma: Floats) -> Floats:
    """Count edges by their direction in every cell of the grid."""
    down, across = np.gradient(luma)
    turn = (np.arctan2(down, across) / (2 * np.pi) + 0.5) * _DIRECTIONS
    direction = turn.astype(np.int64) % _DIRECTIONS
    cell = np.arange(_THUMBNAIL) // (_THUMBNAIL // _GRID)
    index = (cell[:, None] * _GRID + cell) * _DIRECTIONS + direction
    strength = np.hypot(down, across).ravel()
    counts = np.bincount(index.ravel(), strength, _GRID * _GRID * _DIRECTIONS)
    return np.sqrt(counts).astype(np.float32)


def _palette(small: Floats) -> Floats:
    """Count the colours that occur, in a few shades of each channel."""
    shade = ((small + 0.5) * _SHADES).astype(np.int64).clip(0, _SHADES - 1)
    index = (shade[..., 0] * _SHADES + shade[..., 1]) * _SHADES + shade[..., 2]
    return np.sqrt(np.bincount(index.ravel(), minlength=_SHADES**3)).astype(np.float32)


def _unit(vector: Floats) -> Floats:
    length = math.sqrt(float(np.square(vector).sum(dtype=np.float64)))
    return vector / np.float32(length or 1)


def _word_id(word: str) -> int:
    hashed = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
    return _FIRST_WORD + int.from_bytes(hashed, "little") % (_VOCABULARY - _FIRST_WORD)


@lru_cache(maxsize=8192)
def _word_row(word: int, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.shake_128(word.to_bytes(8, "little")).digest(width), np.uint8)
