"""Passes: encoders that share one input and one forward pass of a model; mostly one alone.

A pass has three steps: ``send`` begins to copy a batch to the device, ``run`` begins to compute,
and ``fetch`` waits for the arrays. Of encoders without these steps, ``run`` does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        self._in_steps = hasattr(self._first, "send")

    def prepare(self, source: Any) -> Any:  # noqa: ANN401 - a picture or a caption
        """Prepare the input of one sample, for all of them."""
        return self._first.prepare(source)

    @property
    def takes_turns(self) -> bool:
        """Whether its model has to make room for others on the device."""
        return getattr(self._first, "takes_turns", False)

    @property
    def ways(self) -> list[str]:
        """Name the ways to compute that may be faster than eager."""
        return self._first.ways() if hasattr(self._first, "ways") else []

    def use(self, way: str, warn: Callable[[str], None] | None = None) -> None:
        """Compute in one of the ``ways``, or eager; if it fails, warn and go on in eager."""
        if way != self._first.way:
            self._first.use(way)
        self._first.warn = warn

    @property
    def dtype(self) -> str:
        """The precision of a pass that has ``ways``."""
        return str(self._first.dtype)

    def encode(self, *inputs: Array) -> dict[Component, Array]:
        """Encode a batch, and give the arrays of each component."""
        return self.fetch(self.run(self.send(*inputs)), len(inputs[0]))

    def send(self, *inputs: Array) -> Any:  # noqa: ANN401 - only for ``run``
        """Begin to copy a batch to the device."""
        return self._first.send(*inputs) if self._in_steps else inputs

    def run(self, sent: Any) -> Any:  # noqa: ANN401 - only for ``fetch``
        """Begin to compute."""
        if self._in_steps:
            return self._first.run(sent)
        if len(self.encoders) == 1:
            return {self.components[0]: self._first.encode(*sent)}
        made = self._first.forward(*sent)
        return {component: each.take(made) for component, each in self.encoders.items()}

    def fetch(self, made: Any, count: int) -> dict[Component, Array]:  # noqa: ANN401
        """Wait for the arrays of each component."""
        found: dict[Component, Any] = made
        if self._in_steps:
            found = {component: each.take(made) for component, each in self.encoders.items()}
        for component, arrays in found.items():
            if not isinstance(arrays, np.ndarray) or arrays.shape[:1] != (count,):
                gave = getattr(arrays, "shape", type(arrays).__name__)
                what = f"{component.name}: encode gave {gave} for {count} inputs"
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
