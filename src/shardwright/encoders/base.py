"""What an encoder is: the one small interface between the pipeline and every model.

An encoder makes one component. ``prepare`` runs ahead in the decode threads and must be safe to
call from several at once; ``encode`` is called by one thread only. Weights are loaded by the first
``encode``: until then an encoder has read only what ``prepare`` and ``describe`` need, so that a
run can compare provenance, or only plan, without loading a model.

One that needs much memory may say how much in ``bytes_per_number``: the bytes that ``encode`` takes
for each number of its input. The default batch is then one that fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import UsageError
from shardwright.recipe import Component

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps", re.ASCII)
_DTYPES = ("bfloat16", "float32")

Picture = NDArray[np.uint8]  # (height, width, 3), RGB, upright


@dataclass(frozen=True)
class Tokens:
    """A caption as its encoder reads it, padded or cut to the mask's length."""

    ids: NDArray[np.int64]
    mask: NDArray[np.uint8]
    lost: int | None = None  # tokens that were cut off; None where the encoder does not say
    cut_at: int | None = None  # characters of the caption before the cut, if some were


class ImageEncoder(Protocol):
    """Makes one component from pictures."""

    component: Component
    device: str  # where it runs

    def prepare(self, picture: Picture) -> NDArray[Any]:
        """Preprocess one picture; those whose prepared arrays have one shape are batched."""
        ...

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Turn (N, *prepared shape) into (N, *component shape), in its dtype or a wider one.

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
        """Turn N rows of tokens into (N, *component shape), in its dtype or a wider one.

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

    def __post_init__(self) -> None:
        """Refuse what is nowhere a device or dtype; whether a device is here is asked of torch.

        float16 is refused: T5 and many autoencoders overflow in it.
        """
        if not _DEVICE.fullmatch(self.device):
            raise UsageError(f"--device {self.device}: choose from auto, cpu, cuda, cuda:N and mps")
        if self.dtype is not None and self.dtype not in _DTYPES:
            why = "overflows in these models" if self.dtype == "float16" else "is not offered"
            raise UsageError(f"--dtype {self.dtype}: {why}; choose from {' and '.join(_DTYPES)}")
