"""Preparing as a value: what a shipped encoder does to a picture, apart from the encoder itself.

A value can be sent to another process, which has no torch. It takes an image of Pillow, whose
pixels are not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders.base import Picture

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Preparing(Protocol):
    """What ``prepare`` of an encoder does; it can be pickled."""

    def __call__(self, image: Image.Image, box: Box | None = None) -> NDArray[Any]:
        """Prepare a picture in RGB, or the part of it within the box."""

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Give the width and height that a picture of this size may be decoded at."""


class Pixels:
    """Gives the pixels themselves."""

    def __call__(self, image: Image.Image, box: Box | None = None) -> Picture:
        """Give the pixels, read-only: several encoders see the same picture."""
        return pixels(image)

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Need all of them."""
        return width, height


@dataclass(frozen=True)
class Preprocessing:
    """As the processors of transformers do it: resize, perhaps crop, rescale and normalise."""

    height: int | None  # to exactly this size,
    width: int | None
    resample: int  # numbered as Pillow does
    rescale: float
    mean: list[float]
    std: list[float]
    shortest_edge: int | None = None  # or in proportion, until the shorter side has this length
    crop: list[int] | None = None  # height and width of the centre that is kept
    rounded: bool = True  # whether resized pixels have 8 bits

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the pixel values."""
        height, width = self.crop or (self.height, self.width)
        assert height is not None
        assert width is not None
        return height, width

    def __call__(self, image: Image.Image, box: Box | None = None) -> NDArray[np.float32]:
        """Give the pixel values, (3, height, width), of an image or of the part within the box."""
        left, top, right, bottom = box or (0, 0, *image.size)
        resample, size = Image.Resampling(self.resample), self.needs(right - left, bottom - top)
        if self.rounded:
            pixels = np.asarray(image.resize(size, resample, box)).transpose(2, 0, 1)
        else:
            planes = (plane.convert("F").resize(size, resample, box) for plane in image.split())
            pixels = np.stack(list(map(np.asarray, planes)))
        if self.crop is not None:
            height, width = self.crop
            top, left = (size[1] - height) // 2, (size[0] - width) // 2
            pixels = pixels[:, top : top + height, left : left + width]
        mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (self.mean, self.std))
        values: NDArray[np.float32] = (pixels * np.float32(self.rescale) - mean) / std
        return values

    def needs(self, width: float, height: float) -> tuple[int, int]:
        """Need as many pixels as they are resized to."""
        if self.shortest_edge is None:
            assert self.height is not None
            assert self.width is not None
            return self.width, self.height
        shorter = min(height, width)
        return int(self.shortest_edge * width / shorter), int(self.shortest_edge * height / shorter)


class Prepares:
    """An encoder whose ``prepare`` is a value."""

    preparing: Preparing

    def prepare(self, picture: Picture) -> NDArray[Any]:
        return self.preparing(Image.fromarray(picture))


def preparing(encoder: object) -> Preparing | None:
    """Give what ``prepare`` of an encoder does as a value; None if it is the user's own method."""
    method: Any = getattr(encoder, "prepare", None)
    if isinstance(encoder, Prepares) and getattr(method, "__func__", None) is Prepares.prepare:
        return encoder.preparing
    return None


def pixels(image: Image.Image) -> Picture:
    """Give the pixels of an image, read-only."""
    found = np.asarray(image)
    found.setflags(write=False)
    return found
