"""T5: the last hidden state of the text encoder, one row a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.encoders.base import Axes
from shardwright.encoders.captions import TOKENIZER, CaptionEncoder
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.recipes import Component

if TYPE_CHECKING:
    import torch

KINDS = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel"}


class T5Encoder(CaptionEncoder):
    """The encoder half of a T5."""

    layout = Layout(("config.json",), "model", (TOKENIZER,))

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        config = checkpoint.config("model_type", KINDS)
        shape = (component.settings["tokens"], checkpoint.count(config, "d_model"))
        return KINDS[config["model_type"]], shape

    def describe(self) -> dict[str, Any]:
        return self._described("last_hidden_state")

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        rows: torch.Tensor = made.last_hidden_state
        return rows


load, shape = T5Encoder.load, T5Encoder.shape
