"""Pictures: the fitted image itself as a file, for trainers that encode on the fly and for eyes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from shardwright import pictures
from shardwright.encoders.base import Options, Picture, PictureWriter
from shardwright.pictures import BadPictureError
from shardwright.recipes import Component

_LONGEST_SIDE = {"jpg": 65_500, "png": 2**31 - 1, "webp": 16_383}  # that each format can hold
_FULL_COLOUR = 90  # the JPEG quality from which colours have the resolution of the picture


class Writer:
    """Writes pictures in one format; a file that already is one is kept as it is."""

    device = "cpu"

    def __init__(self, component: Component) -> None:
        self.component = component
        self._format, quality = component.settings["format"], component.settings["quality"]
        self._options: dict[str, Any] = {
            "jpg": {"quality": quality, "subsampling": 0 if quality >= _FULL_COLOUR else 2},
            "png": {},
            "webp": {"lossless": True} if quality == 100 else {"quality": quality},
        }[self._format]

    def write(self, picture: Picture, original: bytes | None) -> bytes:
        if original is not None and (kept := self._kept(original)) is not None:
            return kept
        if max(picture.shape[:2]) > (most := _LONGEST_SIDE[self._format]):
            raise ValueError(f"a side has more than the {most:,} pixels of {self._format}")
        out = io.BytesIO()
        kind = "jpeg" if self._format == "jpg" else self._format
        Image.fromarray(np.ascontiguousarray(picture)).save(out, kind, **self._options)
        return out.getvalue()

    def describe(self) -> dict[str, Any]:
        said = {"encoder": "picture", "format": self._format}
        return said if self._format == "png" else {**said, **self._options}

    def _kept(self, original: bytes) -> bytes | None:
        """Give a file without what follows its picture; None if it has to be written again."""

        def read(count: int, at: int) -> bytes:
            return original[at : at + count]

        try:
            head = pictures.examine(read)
            end = pictures.length(read, len(original), head)
        except BadPictureError:
            return None
        as_wanted = (head.format, head.channels, head.bits) == (self._format, 3, 8)
        return original[:end] if as_wanted and not head.animated else None


def load(component: Component, options: Options, models: dict[Any, Any]) -> PictureWriter:
    """Give the writer of a component."""
    return Writer(component)
