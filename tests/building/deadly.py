"""Encoders for processes to import: one kills its process, and one is slow."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright import Component, Options

DEADLY = 7  # the red of the picture that kills

RECIPE = """
extends = "prx"
components = ["mine"]
[images]
buckets = ["64x64", "96x64", "64x96"]
[component.mine]
encoder = "tests.building.deadly:Deadly"
dtype = "float32"
shape = [3]
"""


class Deadly:
    """Gives the first pixel of each picture; at one colour, its process is killed."""

    device = "cpu"

    def __init__(self, component: Component, options: Options) -> None:
        self.component = component

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.array(picture[0, 0])

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        if (batch[:, 0] == DEADLY).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return batch.astype(np.float32)

    def describe(self) -> dict[str, Any]:
        return {"encoder": "deadly"}


class Slow(Deadly):
    """Takes its time, so that it can be interrupted."""

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        time.sleep(0.05 * len(batch))
        return batch.astype(np.float32)
