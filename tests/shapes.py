"""What the demo's pictures show, and what their captions say, for tests."""

from __future__ import annotations

import numpy as np

from shardwright.demo import COLOURS
from shardwright.encoders.base import Picture


def colours(picture: Picture) -> tuple[str, str]:
    """Name the colour of the shape, and that of the field, which is most of the border."""
    known = np.array(list(COLOURS.values()), np.float32)
    nearest = np.square(picture[:, :, None] - known).sum(axis=-1).argmin(axis=-1)
    border = np.pad(np.zeros(np.array(nearest.shape) - 8, bool), 4, constant_values=True)
    field = np.bincount(nearest[border], minlength=len(known)).argmax()
    counts = np.bincount(nearest[nearest != field], minlength=len(known))
    names = list(COLOURS)
    return names[counts.argmax()], names[field]


def said(caption: str) -> tuple[str, str]:
    """Name the colours that a caption says: a red circle on a blue field."""
    words = caption.replace(";", " ").split()
    return words[1], words[5]
