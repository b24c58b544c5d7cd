"""Encoders for worker processes to import, which fail in ways that no exception tells."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright import Component, Options
from shardwright.engine import DeviceLostError

DEADLY = 7  # the red of pictures that kill
MARK = "SHARDWRIGHT_TEST_MARK"  # names a file, which the worker makes that loses its device

RECIPE = """
extends = "prx"
components = ["mine"]
[component.mine]
encoder = "tests.derive.fallible:{encoder}"
dtype = "float32"
shape = [3]
"""


class Plain:
    """Gives the first pixel of each picture."""

    device = "cpu"

    def __init__(self, component: Component, options: Options) -> None:
        self.component = component

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.array(picture[0, 0])

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        return batch.astype(np.float32)

    def describe(self) -> dict[str, Any]:
        return {"encoder": "plain"}


class Deadly(Plain):
    """Has its process killed by some pictures."""

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        if (batch[:, 0] == DEADLY).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(batch)


class Crashing(Plain):
    """Has its process killed once, in the worker that comes to it first."""

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        if (batch[:, 0] == DEADLY).any() and _is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(batch)


class Lost(Plain):
    """Loses its device at some pictures, in the worker that comes to one first."""

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        if (batch[:, 0] == DEADLY).any() and _is_first():
            raise DeviceLostError("CUDA error: uncorrectable ECC error encountered")
        return super().encode(batch)


class AllLost(Plain):
    """Loses its device at some pictures, in every worker."""

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        if (batch[:, 0] == DEADLY).any():
            raise DeviceLostError("CUDA error: uncorrectable ECC error encountered")
        return super().encode(batch)


def _is_first() -> bool:
    """Whether nobody has been here before."""
    try:
        Path(os.environ[MARK]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
