"""The contract, as somebody with an encoder of their own uses it: by the public names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shardwright
from shardwright.recipes import ANY, Component


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


class Spots(Levels):
    """A row for each of the brightest pixels, of which there may be any number."""

    def __init__(self, dtype: str) -> None:
        self.component = Component("spots", "spots", "spots.npy", dtype, (ANY, 3))

    def prepare(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        brightest = picture[..., 0] == picture[..., 0].max()
        return np.asarray(picture[brightest], np.float32)


class TestSpots(shardwright.ImageEncoderContract):
    def load(self) -> shardwright.ImageEncoder:
        return Spots("bfloat16")


class Lengths(Levels):
    """The length of each word, on a free axis; of no words, nothing."""

    def __init__(self, dtype: str) -> None:
        self.component = Component("n", "n", "n.npy", dtype, (ANY,), source="caption")

    def prepare(self, caption: str) -> shardwright.Tokens:  # type: ignore[override]
        ids = np.zeros(20, np.int64)
        words = caption.split()[:20]
        ids[: len(words)] = [len(word) for word in words]
        return shardwright.Tokens(ids, (ids > 0).astype(np.uint8))

    def encode(self, ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:  # type: ignore[override]
        return ids * np.float32(0.5)


class TestLengths(shardwright.TextEncoderContract):
    def load(self) -> Any:  # noqa: ANN401
        return Lengths("<f2")

    def test_no_caption_at_all_has_a_token_and_an_array(self) -> None:
        with pytest.raises(AssertionError, match="the empty caption has no token"):
            super().test_no_caption_at_all_has_a_token_and_an_array()


def test_a_free_axis_of_length_zero_breaks_the_contract() -> None:
    class Nothing(Spots):
        def prepare(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
            return np.zeros((0, 3), np.float32)

    class Wrong(TestSpots):
        def load(self) -> shardwright.ImageEncoder:
            return Nothing("<f4")

    with pytest.raises(AssertionError, match=r"64x64: \(0, 3\), not \('any', 3\)"):
        Wrong().test_shape_follows_the_picture()


def test_half_precision_breaks_the_contract_of_a_bfloat16_component() -> None:
    class Half(Spots):
        def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
            return batch.astype(np.float16)

    class Wrong(TestSpots):
        def load(self) -> shardwright.ImageEncoder:
            return Half("bfloat16")

    with pytest.raises(AssertionError, match="float16 is less than float32"):
        Wrong().test_arrays_are_numbers_that_the_component_can_hold()


@pytest.mark.parametrize(("dtype", "why"), [("<f4", "int64, not float32"), ("|i1", "cannot hold")])
def test_integers_that_the_component_cannot_hold_break_the_contract(dtype: str, why: str) -> None:
    class Wrong(TestLevels):
        def load(self) -> shardwright.ImageEncoder:
            return Levels(dtype)

        def sources(self) -> list[NDArray[np.uint8]]:
            return [np.zeros((20, 20, 3), np.uint8)]

    with pytest.raises(AssertionError, match=why):
        Wrong().test_arrays_are_numbers_that_the_component_can_hold()
