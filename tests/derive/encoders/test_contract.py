"""The contract, as somebody with an encoder of their own uses it: by the public names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardwright
from shardwright.recipes import Component


class Levels:
    """How often each level of red occurs: integers."""

    device = "cpu"

    def __init__(self, dtype: str) -> None:
        self.component = Component("levels", "levels", "levels.npy", dtype, (256,))

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        return np.bincount(picture[..., 0].ravel(), minlength=256)

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        return batch

    def describe(self) -> dict[str, Any]:
        return {"encoder": "levels"}


class TestLevels(shardwright.ImageEncoderContract):
    def load(self) -> shardwright.ImageEncoder:
        return Levels("<u4")


@pytest.mark.parametrize(("dtype", "why"), [("<f4", "int64, not float32"), ("|i1", "cannot hold")])
def test_integers_that_the_component_cannot_hold_break_the_contract(dtype: str, why: str) -> None:
    class Wrong(TestLevels):
        def load(self) -> shardwright.ImageEncoder:
            return Levels(dtype)

        def sources(self) -> list[NDArray[np.uint8]]:
            return [np.zeros((20, 20, 3), np.uint8)]

    with pytest.raises(AssertionError, match=why):
        Wrong().test_arrays_are_numbers_that_the_component_can_hold()
