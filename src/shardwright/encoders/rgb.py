"""The colours of a latent by a linear map from its channels: coarse, but without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import Picture


@dataclass(frozen=True, eq=False)
class Factors:
    """From the channels of a place to red, green and blue, each from 0 to 1."""

    weights: NDArray[np.float64]  # (channels, 3)
    bias: NDArray[np.float64]  # (3,)

    def colours(self, channels: NDArray[Any]) -> NDArray[np.float64]:
        """Turn (places, channels) into (places, 3)."""
        return np.clip(channels @ self.weights + self.bias, 0, 1)

    def picture(self, channels: NDArray[Any]) -> Picture:
        """Turn (channels, rows, columns) into a picture of so many rows and columns."""
        colours = self.colours(np.moveaxis(channels, 0, -1))
        return (colours * 255).round().astype(np.uint8)


# FLUX.1, as published: of scaled latents, and to a range from -1 to 1.
_FLUX_SCALE, _FLUX_SHIFT = 0.3611, 0.1159
_FLUX_BIAS = np.array([-0.0329, -0.0718, -0.0851])
_FLUX_WEIGHTS = np.array(
    [
        (-0.0346, 0.0244, 0.0681),
        (0.0034, 0.0210, 0.0687),
        (0.0275, -0.0668, -0.0433),
        (-0.0174, 0.0160, 0.0617),
        (0.0859, 0.0721, 0.0329),
        (0.0004, 0.0383, 0.0115),
        (0.0405, 0.0861, 0.0915),
        (-0.0236, -0.0185, -0.0259),
        (-0.0245, 0.0250, 0.1180),
        (0.1008, 0.0755, -0.0421),
        (-0.0515, 0.0201, 0.0011),
        (0.0428, -0.0012, -0.0036),
        (0.0817, 0.0765, 0.0749),
        (-0.1264, -0.0522, -0.1103),
        (-0.0280, -0.0881, -0.0499),
        (-0.1262, -0.0982, -0.0778),
    ]
)
_FLUX = Factors(
    _FLUX_WEIGHTS * _FLUX_SCALE / 2,
    (_FLUX_BIAS + 1 - _FLUX_SHIFT * _FLUX_SCALE * _FLUX_WEIGHTS.sum(axis=0)) / 2,
)


def published(channels: int, settings: Mapping[str, Any]) -> Factors | None:
    """Give the factors for latents of FLUX.1, by its channels, scale and shift; None for others."""
    scale, shift = settings.get("scaling_factor"), settings.get("shift_factor")
    if not isinstance(scale, float) or not isinstance(shift, float):
        return None
    same = math.isclose(scale, _FLUX_SCALE) and math.isclose(shift, _FLUX_SHIFT)
    return _FLUX if same and channels == len(_FLUX_WEIGHTS) else None
