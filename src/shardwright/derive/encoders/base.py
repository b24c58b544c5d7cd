"""What an encoder is: the one small interface between the pipeline and every model.

An encoder makes one component. ``prepare`` runs ahead in the decode threads and must be safe to
call from several at once; ``encode`` is called by one thread only. Weights are loaded by the first
``encode``: until then an encoder has read only what ``prepare`` and ``describe`` need, so that a
run can compare provenance, or only plan, without loading a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.schema import Component

Picture = NDArray[np.uint8]  # (height, width, 3), RGB, upright


class Tokens(NamedTuple):
    """A caption as its encoder reads it, padded or cut to the mask's length."""

    ids: NDArray[np.int64]
    mask: NDArray[np.uint8]


class ImageEncoder(Protocol):
    """Makes one component from pictures."""

    component: Component
    device: str  # where it runs

    def prepare(self, picture: Picture) -> NDArray[Any]:
        """Preprocess one picture; those whose prepared arrays have one shape are batched."""
        ...

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Turn (N, *prepared shape) into (N, *component shape), in its dtype or a wider float.

        Raises MemoryError when the device has no room for the batch; it is then halved.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Say what the arrays depend on: equal descriptions mean equal arrays."""
        ...


class TextEncoder(Protocol):
    """Makes one component from captions."""

    component: Component
    device: str  # where it runs

    def prepare(self, caption: str) -> Tokens:
        """Tokenize one caption."""
        ...

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8]) -> NDArray[Any]:
        """Turn N rows of tokens into (N, *component shape), in its dtype or a wider float.

        Raises MemoryError when the device has no room for the batch; it is then halved.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Say what the arrays depend on: equal descriptions mean equal arrays."""
        ...


Encoder = ImageEncoder | TextEncoder


@dataclass(frozen=True)
class Options:
    """How the user wants the encoders loaded."""

    device: str = "auto"
    dtype: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)  # component name -> id or path
