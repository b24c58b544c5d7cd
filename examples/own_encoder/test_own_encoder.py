"""What every encoder promises, tested for this one: run pytest in this folder."""

from __future__ import annotations

from own_encoder import Colours

from shardwright import Component, ImageEncoder, ImageEncoderContract, Options

# As in shardwright.toml.
COLOURS = Component(
    *("colours", "colours", "colours.npy", "<f4", (48,)), settings={"options": {"cells": 4}}
)


class TestColours(ImageEncoderContract):
    """The contract, by inheritance."""

    def load(self) -> ImageEncoder:
        """Make the encoder as Shardwright does."""
        return Colours(COLOURS, Options())
