"""Preparing as a value: what a shipped encoder does to a picture, apart from the encoder itself.

A value can be sent to another process. It takes an image of Pillow, whose pixels are not copied.
"""

from __future__ import annotations

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
        ...

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Give the width and height that a picture of this size may be decoded at."""
        ...


class Pixels:
    """Gives the pixels themselves."""

    def __call__(self, image: Image.Image, box: Box | None = None) -> Picture:
        """Give the pixels, read-only: several encoders see the same picture."""
        return pixels(image)

    def needs(self, width: int, height: int) -> tuple[int, int]:
        """Need all of them."""
        return width, height


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
