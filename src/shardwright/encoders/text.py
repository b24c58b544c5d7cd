"""Text models of the decoder kind (Qwen, Gemma, Llama, …): the hidden states of a layer.

Padding stands on the right. A template is cut with the caption: what is beyond ``tokens`` is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.encoders import t5
from shardwright.encoders.base import Axes
from shardwright.encoders.captions import (
    SPECIAL_TOKENS,
    TOKENIZER,
    CaptionEncoder,
    layer_of,
    text_config,
)
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.errors import UsageError
from shardwright.recipes import Component

if TYPE_CHECKING:
    import torch
    from torch import nn


class DecoderEncoder(CaptionEncoder):
    """A decoder without its head."""

    layout = Layout(("config.json",), "model", (TOKENIZER, *SPECIAL_TOKENS))
    on_cuda = "bfloat16"  # in which these models are trained and published

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        config = checkpoint.read("config.json")
        kind = config.get("model_type")
        if config.get("is_encoder_decoder") or kind in t5.KINDS:
            what = f"is a {kind} model, which has an encoder of its own"
            raise UsageError(what, path=checkpoint.asked, fix='use encoder = "t5", or a decoder')
        config = text_config(checkpoint, cls.defaults)
        layer_of(checkpoint, config)
        shape = (component.settings["tokens"], checkpoint.count(config, "hidden_size"))
        return "AutoModel", shape

    def describe(self) -> dict[str, Any]:
        return self._described()

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        return model(**tokens, output_hidden_states=True, use_cache=False)

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        return self._hidden_states(made)


load, shape = DecoderEncoder.load, DecoderEncoder.shape
