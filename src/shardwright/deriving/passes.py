"""Passes: encoders that share one input and one forward pass of a model; mostly one alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.deriving.views import View
from shardwright.encoders.base import Encoder, PictureWriter
from shardwright.errors import ShardwrightError
from shardwright.recipes import Component

Array = NDArray[Any]


class Pass:
    """Encoders that take their arrays from one forward pass."""

    def __init__(self, encoders: Mapping[Component, Any]) -> None:
        self.encoders = encoders
        self.components = tuple(encoders)
        self._first = self.encoders[self.components[0]]
        self.name = ", ".join(component.name for component in self.components)
        self.source, self.field = self.components[0].source, self.components[0].field
        self.device: str = self._first.device
        # Users' encoders may not have it.
        self.bytes_per_number: int | None = getattr(self._first, "bytes_per_number", None)

    def prepare(self, source: Any) -> Any:  # noqa: ANN401 - a picture or a caption
        """Prepare the input of one sample, for all of them."""
        return self._first.prepare(source)

    def encode(self, *inputs: Array) -> dict[Component, Array]:
        """Encode a batch, and give the arrays of each component."""
        if len(self.encoders) == 1:
            found = {self.components[0]: self._first.encode(*inputs)}
        else:
            made = self._first.forward(*inputs)
            found = {component: encoder.take(made) for component, encoder in self.encoders.items()}
        for component, arrays in found.items():
            if not isinstance(arrays, np.ndarray) or arrays.shape[:1] != (len(inputs[0]),):
                gave = getattr(arrays, "shape", type(arrays).__name__)
                what = f"{component.name}: encode gave {gave} for {len(inputs[0])} inputs"
                raise ShardwrightError(what, fix="give an array with a row for each input")
        return found


def passes(
    encoders: Mapping[Component, Encoder | PictureWriter], views: Mapping[Component, View]
) -> list[Pass]:
    """Group encoders that share a model and see the same input; pictures are only written."""
    groups: dict[tuple[int, View | None], dict[Component, Any]] = {}
    for component, encoder in encoders.items():
        if component.is_array:
            shared = id(getattr(encoder, "shares", encoder))
            groups.setdefault((shared, views.get(component)), {})[component] = encoder
    return list(map(Pass, groups.values()))
