"""CLIP's text model: the hidden states of a layer, the pooled vector, or its projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from shardwright.encoders.base import Axes
from shardwright.encoders.captions import BYTE_PAIRS, CaptionEncoder, layer_of, text_config
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.recipes import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

_PLAIN, _PROJECTED = "CLIPTextModel", "CLIPTextModelWithProjection"
_NAMES = {"pooled": "pooler_output", "projected": "text_embeds"}


class ClipEncoder(CaptionEncoder):
    """The text half of a CLIP."""

    layout = Layout(("config.json",), "model", BYTE_PAIRS)
    pad = "<|endoftext|>"
    defaults: ClassVar[Mapping[str, int]] = {
        "hidden_size": 512,
        "projection_dim": 512,
        "num_hidden_layers": 12,
        "max_position_embeddings": 77,
        "vocab_size": 49408,
    }

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        full = checkpoint.config("model_type", ("clip_text_model", "clip"))
        config = text_config(checkpoint, cls.defaults)
        settings, named = component.settings, full.get("architectures") or ()
        kind = _PLAIN if full["model_type"] == "clip_text_model" and _PLAIN in named else _PROJECTED
        longest = checkpoint.count(config, "max_position_embeddings")
        if settings["tokens"] > longest:
            but, fix = f"takes at most {longest}", f"give {longest} or less"
            raise checkpoint.refused("tokens", settings["tokens"], but, fix)
        hidden, projected = (checkpoint.count(config, k) for k in ("hidden_size", "projection_dim"))
        if settings["output"] == "pooled":
            return kind, (hidden,)
        if settings["output"] == "projected":
            if kind == _PLAIN:
                but, fix = f"is a {_PLAIN}", f"use pooled, or a {_PROJECTED}"
                raise checkpoint.refused("output", "projected", but, fix)
            return kind, (projected,)
        layer_of(checkpoint, config)
        return kind, (settings["tokens"], hidden)

    def describe(self) -> dict[str, Any]:
        return self._described(_NAMES.get(self.component.settings["output"]))

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        # Inside the model with a projection is one without, which gives all that is needed.
        return getattr(model, "text_model", model)(**tokens, output_hidden_states=True)

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        output = self.component.settings["output"]
        if output == "hidden":
            return self._hidden_states(made)
        vector: torch.Tensor = made.pooler_output
        if output == "projected":
            vector = self._model.text_projection(vector)
        return vector


load, shape = ClipEncoder.load, ClipEncoder.shape
