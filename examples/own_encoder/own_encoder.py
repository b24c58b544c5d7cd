"""An encoder of your own: the average colour of every cell of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright import Component, Options


class Colours:
    """Makes one component; Shardwright calls it with the component and the user's options."""

    device = "cpu"

    def __init__(self, component: Component, options: Options) -> None:
        self.component = component
        self.cells = component.settings["options"]["cells"]  # of the recipe

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Do what a single picture needs; this runs in several threads."""
        image = Image.fromarray(picture)
        return np.array(image.resize((self.cells, self.cells), Image.Resampling.BOX))

    def encode(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Turn a batch into arrays; this is where a model would run, on ``self.device``."""
        return batch.reshape(len(batch), -1).astype(np.float32) / np.float32(255)

    def describe(self) -> dict[str, Any]:
        """Give everything that the arrays depend on."""
        return {"encoder": "own_encoder:Colours", "version": 1, "cells": self.cells}
