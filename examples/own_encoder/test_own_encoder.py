"""What every encoder promises, tested for this one: run pytest in this folder."""

from __future__ import annotations

from pathlib import Path

from own_encoder import Colours

from shardwright import ImageEncoder, ImageEncoderContract
from shardwright.encoders.base import Options
from shardwright.recipes import find

RECIPE = find(str(Path(__file__).with_name("shardwright.toml"))).recipe


class TestColours(ImageEncoderContract):
    """The contract, by inheritance."""

    def load(self) -> ImageEncoder:
        """Make the encoder as Shardwright does."""
        return Colours(RECIPE.by_name["colours"], Options())
