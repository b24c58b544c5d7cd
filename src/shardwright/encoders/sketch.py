"""The sketch encoders: no weights, no torch, the right shapes, and arrays with a meaning.

They replace the models in the demo, in tests and in trials of training code. A latent decodes back
to a recognisable picture, similar pictures have similar descriptors, and captions that share words
share rows. ``prepare`` does all work on pictures, one at a time and without BLAS, so that no array
depends on its batch or on the number of threads.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders.base import Encoder, Options, Picture, Tokens
from shardwright.errors import UsageError
from shardwright.recipes import Component

Floats = NDArray[np.floating[Any]]

_VERSION = 1  # raised with any change of the arrays

_BLOCK = 8
# The lowest frequencies of a block, as (down, across): six of the luma, five of each chroma.
_FREQUENCIES = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
_CHANNELS = tuple((0, frequency) for frequency in _FREQUENCIES) + tuple(
    (plane, frequency) for plane in (1, 2) for frequency in _FREQUENCIES[:5]
)
_SCALE = 256  # brings the coefficients into the range of a model's latents, about -4 to 4

_LUMA = (0.299, 0.587, 0.114)
_TO_YCC = (_LUMA, (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))  # as JPEG has it
_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))

_THUMBNAIL, _GRID, _DIRECTIONS, _SHADES = 64, 8, 8, 4

_WORD = re.compile(r"\w+|[^\w\s]")
_VOCABULARY = 32_000
_PADDING, _END, _FIRST_WORD = 0, 1, 2
_WIDTH = 1024  # of a word's row


def load(component: Component, options: Options) -> Encoder:
    """Give the sketch of a component."""
    if component.name not in _ENCODERS:
        fix = f"leave {component.name} out of --components"
        raise UsageError(f"--encoders sketch: no encoder for {component.name}", fix=fix)
    return _ENCODERS[component.name](component)


def decode(latent: NDArray[Any]) -> Picture:
    """Turn a sketched latent back into a coarse picture."""
    rows, columns = latent.shape[1:]
    planes = np.zeros((3, rows, _BLOCK, columns, _BLOCK), np.float32)
    for channel, (plane, (down, across)) in zip(latent, _CHANNELS, strict=True):
        wave = _COSINES[down][:, None, None] * _COSINES[across]
        planes[plane] += channel.astype(np.float32)[:, None, :, None] * (wave * _SCALE)
    ycc = planes.reshape(3, rows * _BLOCK, columns * _BLOCK)
    rgb = np.stack([_weighted(ycc, weights) for weights in _TO_RGB], axis=-1)
    return (rgb + 128).round().clip(0, 255).astype(np.uint8)


class _Sketch:
    device = "cpu"
    model: ClassVar[str]

    def __init__(self, component: Component) -> None:
        self.component = component

    def describe(self) -> dict[str, Any]:
        return {"encoder": "sketch", "model": self.model, "version": _VERSION}


class _PictureSketch(_Sketch):
    def encode(self, batch: Floats) -> Floats:
        return batch  # ``prepare`` has done it


class BlockTransform(_PictureSketch):
    """Latents: the lowest frequencies of every 8x8 block of a picture."""

    model = "block-dct"

    def prepare(self, picture: Picture) -> Floats:
        planes = [_weighted(np.moveaxis(picture, 2, 0), weights) for weights in _TO_YCC]
        planes[0] -= 128
        rows, columns = picture.shape[0] // _BLOCK, picture.shape[1] // _BLOCK
        latent = np.empty((len(_CHANNELS), rows, columns), np.float32)
        bands: dict[tuple[int, int], Floats] = {}
        for number, (plane, (down, across)) in enumerate(_CHANNELS):
            if (plane, down) not in bands:
                blocks = planes[plane].reshape(rows, _BLOCK, columns * _BLOCK)
                bands[plane, down] = _weighted(np.moveaxis(blocks, 1, 0), _COSINES[down])
            blocks = bands[plane, down].reshape(rows, columns, _BLOCK)
            latent[number] = _weighted(np.moveaxis(blocks, 2, 0), _COSINES[across])
        return latent / _SCALE

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "scaling_factor": 1.0, "shift_factor": 0.0}


class Descriptor(_PictureSketch):
    """A picture in one vector: its colours and edges by place, and its palette."""

    model = "colours-and-edges"

    def prepare(self, picture: Picture) -> Floats:
        image = Image.fromarray(picture)
        thumbnail = image.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
        small = np.array(thumbnail, np.float32) / np.float32(255) - np.float32(0.5)
        luma = _weighted(np.moveaxis(small, 2, 0), _LUMA)
        parts = (_pooled(small, _GRID), _pooled(luma, 2 * _GRID), _edges(luma), _palette(small))
        return np.concatenate([_unit(part.ravel()) for part in parts]).astype(np.float32) / 2


class HashedWords(_Sketch):
    """Captions: a row for each word, drawn from the word's hash."""

    model = "hashed-words"

    def prepare(self, caption: str) -> Tokens:
        found = list(_WORD.finditer(caption.lower()))
        words = found[: self.component.tokens - 1]
        ids = np.full(self.component.tokens, _PADDING, np.int64)
        ids[: len(words)] = [_word_id(word[0]) for word in words]
        ids[len(words)] = _END
        lost = len(found) - len(words)
        cut_at = None
        if lost:  # a few characters are longer in lower case
            ends = range(len(caption) + 1)
            cut_at = bisect_left(ends, words[-1].end(), key=lambda at: len(caption[:at].lower()))
        return Tokens(ids, (ids != _PADDING).astype(np.uint8), lost, cut_at)

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8]) -> Floats:
        return np.stack([[_word_row(word) for word in row] for row in ids.tolist()])


_ENCODERS: dict[str, Callable[[Component], Encoder]] = {
    "vae": BlockTransform,
    "dinov3": Descriptor,
    "t5": HashedWords,
}


def _cosines() -> tuple[Floats, ...]:
    """Give the rows of the orthonormal DCT-II of a block, lowest frequencies first."""
    rows = []
    for frequency in range(1 + max(max(pair) for pair in _FREQUENCIES)):
        weight = math.sqrt((2 if frequency else 1) / _BLOCK)
        angles = [math.pi * frequency * (2 * k + 1) / (2 * _BLOCK) for k in range(_BLOCK)]
        rows.append(np.array([weight * math.cos(angle) for angle in angles], np.float32))
    return tuple(rows)


_COSINES = _cosines()


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
def _word_row(word: int) -> Floats:
    if word == _PADDING:
        return np.zeros(_WIDTH, np.float32)
    drawn = hashlib.shake_128(word.to_bytes(8, "little")).digest(_WIDTH)
    return (np.frombuffer(drawn, np.uint8).astype(np.float32) - 127.5) / 128
