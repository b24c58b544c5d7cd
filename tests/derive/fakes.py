"""Encoders that misbehave on purpose, given to derive as anybody's own encoders are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import Encoder, ImageEncoder, Options, Picture
from shardwright.encoders.sketch import load
from shardwright.recipes import SPECIFICATION, Component

DINO, VAE, T5 = SPECIFICATION.components


def given(**replaced: Encoder) -> dict[str, Encoder]:
    """Give the sketch encoders, some of them replaced."""
    return {c.name: load(c, Options(), {}) for c in SPECIFICATION.components} | replaced


class Fake:
    """Gives each picture an array of its first pixel's red; subclasses interfere."""

    device = "cpu"

    def __init__(self, component: Component = DINO, **described: Any) -> None:  # noqa: ANN401
        self.component = component
        self.described = described
        self.batches: list[int] = []

    def prepare(self, picture: Picture) -> NDArray[Any]:
        return np.full((4, 4), picture[0, 0, 0], np.float32)

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        self.batches.append(len(batch))
        shape = self.component.shape_for(0, 0)
        return np.broadcast_to(batch[:, :1, 0], (len(batch), *shape)).astype(np.float32)

    def describe(self) -> dict[str, Any]:
        return {"encoder": "fake", **self.described}


class SmallDevice(Fake):
    """Has memory for so many pictures at a time."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        if len(batch) > self.room:
            raise MemoryError
        return super().encode(batch)


class Spoils(Fake):
    """Puts a value into the array of the picture that begins with this red."""

    def __init__(self, red: int, value: float, component: Component = DINO) -> None:
        super().__init__(component)
        self.red, self.value = red, value

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        made = super().encode(batch)
        made[batch[:, 0, 0] == self.red] = self.value
        return made


class Chokes(Fake):
    """Raises whenever the picture that begins with this red is in the batch."""

    def __init__(self, red: int) -> None:
        super().__init__()
        self.red = red

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        if (batch[:, 0, 0] == self.red).any():
            raise RuntimeError("device-side assert triggered")
        return super().encode(batch)


def is_image_encoder(encoder: Fake) -> ImageEncoder:
    """Let the type checker see that a fake is an encoder."""
    return encoder
