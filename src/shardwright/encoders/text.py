"""Text models: T5, CLIP, and those of the decoder kind (Qwen, Gemma, Llama, …).

They share the tokenizer, a template, and which layer is taken. Padding stands on the right. A
template is cut with the caption: what is beyond ``tokens`` is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from shardwright.encoders.base import Axes, Options, Tokens
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.pretrained import Pretrained
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component
from shardwright.recipes.keys import brief

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER = "tokenizer.json"
_SPECIAL_TOKENS = ("tokenizer_config.json", "special_tokens_map.json")
_PARTS = ("vocab.json", "merges.txt")  # of CLIP's, where there is no tokenizer.json
_T5 = {"t5": "T5EncoderModel", "umt5": "UMT5EncoderModel"}
_CLIP, _PROJECTED = "CLIPTextModel", "CLIPTextModelWithProjection"
_CLIP_OUTPUTS = {"pooled": "pooler_output", "projected": "text_embeds"}


class TextModel(Pretrained):
    """A text model of transformers; it gives a row for each token, or of CLIP a vector."""

    packages = ("tokenizers",)
    pad: ClassVar[str | None] = None  # the padding token, if the checkpoint does not name it
    defaults: ClassVar[Mapping[str, int]] = {}  # what a configuration within another leaves out

    def _begin(self) -> None:
        checkpoint, tokens = self._checkpoint, self.component.tokens
        self._tokenizer = _read_tokenizer(checkpoint, tokens, self.pad, self.defaults)
        self._before, _, self._after = self._template.partition("{caption}")
        if self._tokenizer.encode(self._before + self._after).overflowing:
            but = f"makes more than {tokens} tokens of it, without a caption"
            fix = "give more tokens, or a shorter template"
            raise checkpoint.refused("template", brief(self._template), but, fix)

    def prepare(self, caption: str) -> Tokens:
        found = self._tokenizer.encode(f"{self._before}{caption}{self._after}")
        ids, mask = np.array(found.ids, np.int64), np.array(found.attention_mask, np.uint8)
        mask[0] = 1  # some models have no token for an empty caption: it is then one of padding
        first, last = len(self._before), len(self._before) + len(caption)
        # What was cut off comes in further pieces, each with its own special tokens.
        lost = [
            start
            for piece in found.overflowing
            for special, (start, _) in zip(piece.special_tokens_mask, piece.offsets, strict=True)
            if not special and start < last
        ]
        if not lost:
            return Tokens(ids, mask, 0)
        # A character may be of several tokens, of which only some are kept.
        kept = min(max(end for _, end in found.offsets), min(lost))
        return Tokens(ids, mask, len(lost), max(kept - first, 0))

    def describe(self) -> dict[str, Any]:
        """Describe it, without the settings that are as T5 has them by default."""
        output = _CLIP_OUTPUTS.get(self.component.settings.get("output", ""))
        if output is None:
            last = self._layer == -1
            output = "last_hidden_state" if last else f"hidden_states[{self._layer}]"
        more: dict[str, Any] = {"tokens": self.component.tokens}
        if self._template != "{caption}":
            more["template"] = self._template
        if not self._is_masked:
            more["attention_mask"] = False
        return self._description(output, **more)

    def _input(self) -> tuple[object, ...]:
        return (self.component.field, self.component.tokens, self._template, self._is_masked)

    @property
    def _is_masked(self) -> bool:
        return bool(self.component.settings["attention_mask"])

    @property
    def _template(self) -> str:
        return str(self.component.settings.get("template", "{caption}"))

    @cached_property
    def _layer(self) -> int:
        if "layer" not in self.component.settings:
            return -1
        return _layer_of(self._checkpoint, _text_config(self._checkpoint, self.defaults))

    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> Any:  # noqa: ANN401
        ids, mask = inputs
        return self._call(
            model, input_ids=ids, attention_mask=mask.long() if self._is_masked else None
        )

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        return model(**tokens)

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401 - the output of a model
        last = self._layer == -1
        found: torch.Tensor = made.last_hidden_state if last else made.hidden_states[self._layer]
        return found


class T5Encoder(TextModel):
    """The encoder half of a T5."""

    layout = Layout(("config.json",), "model", (_TOKENIZER,))

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        config = checkpoint.config("model_type", _T5)
        shape = (component.settings["tokens"], checkpoint.count(config, "d_model"))
        return _T5[config["model_type"]], shape


class DecoderEncoder(TextModel):
    """A decoder without its head."""

    layout = Layout(("config.json",), "model", (_TOKENIZER, *_SPECIAL_TOKENS))
    on_cuda = "bfloat16"  # in which these models are trained and published

    @classmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        config = checkpoint.read("config.json")
        kind = config.get("model_type")
        if config.get("is_encoder_decoder") or kind in _T5:
            what = f"is a {kind} model, which has an encoder of its own"
            raise UsageError(what, path=checkpoint.asked, fix='use encoder = "t5", or a decoder')
        config = _text_config(checkpoint, cls.defaults)
        _layer_of(checkpoint, config)
        shape = (component.settings["tokens"], checkpoint.count(config, "hidden_size"))
        return "AutoModel", shape

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        return model(**tokens, output_hidden_states=True, use_cache=False)


class ClipEncoder(TextModel):
    """The text half of a CLIP: the states of a layer, the pooled vector, or its projection."""

    layout = Layout(("config.json",), "model", (_TOKENIZER, *_PARTS, *_SPECIAL_TOKENS))
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
        config = _text_config(checkpoint, cls.defaults)
        settings, named = component.settings, full.get("architectures") or ()
        kind = _CLIP if full["model_type"] == "clip_text_model" and _CLIP in named else _PROJECTED
        longest = checkpoint.count(config, "max_position_embeddings")
        if settings["tokens"] > longest:
            but, fix = f"takes at most {longest}", f"give {longest} or less"
            raise checkpoint.refused("tokens", settings["tokens"], but, fix)
        hidden, projected = (checkpoint.count(config, k) for k in ("hidden_size", "projection_dim"))
        if settings["output"] == "pooled":
            return kind, (hidden,)
        if settings["output"] == "projected":
            if kind == _CLIP:
                but, fix = f"is a {_CLIP}", f"use pooled, or a {_PROJECTED}"
                raise checkpoint.refused("output", "projected", but, fix)
            return kind, (projected,)
        _layer_of(checkpoint, config)
        return kind, (settings["tokens"], hidden)

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        # Inside the model with a projection is one without, which gives all that is needed.
        return getattr(model, "text_model", model)(**tokens, output_hidden_states=True)

    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        output = self.component.settings["output"]
        if output == "hidden":
            return super()._choose(made)
        vector: torch.Tensor = made.pooler_output
        return self._model.text_projection(vector) if output == "projected" else vector


_ENCODERS: Mapping[str, type[TextModel]] = {
    "t5": T5Encoder,
    "clip": ClipEncoder,
    "text": DecoderEncoder,
}


def load(component: Component, options: Options, models: dict[Any, Any]) -> TextModel:
    """Give the encoder of a component."""
    return _ENCODERS[component.encoder or ""].load(component, options, models)


def shape(component: Component, models: dict[Any, Any]) -> Axes:
    """Give the shape that the checkpoint's configuration gives a component."""
    return _ENCODERS[component.encoder or ""].shape(component, models)


def _text_config(checkpoint: Checkpoint, defaults: Mapping[str, int]) -> dict[str, Any]:
    """Read the configuration of a text model, which may be part of a larger one."""
    config = checkpoint.read("config.json")
    return {**defaults, **config.get("text_config", config)}


def _layer_of(checkpoint: Checkpoint, config: Mapping[str, Any]) -> int:
    """Give the layer that a component wants, counted from the end; raise if there is no such layer.

    -1 is after the last layer and its norm; the first is what goes into the layers.
    """
    layers = checkpoint.count(config, "num_hidden_layers")
    layer: int = checkpoint.component.settings["layer"]
    if not -layers - 1 <= layer <= layers:
        fix = f"give a number from {-layers - 1} to -1"
        raise checkpoint.refused("layer", layer, f"has {layers} layers", fix)
    return layer if layer < 0 else layer - layers - 1


def _read_tokenizer(
    checkpoint: Checkpoint, tokens: int, pad: str | None, defaults: Mapping[str, int]
) -> Tokenizer:
    """Load the checkpoint's own tokenizer; it pads and cuts every caption to so many tokens.

    Without transformers' wrapper, which sets padding and truncation again on every call: that is
    not safe in threads.
    """
    folder = checkpoint.tokenizer_folder
    tokenizer = _load_tokenizer(checkpoint)
    config = _text_config(checkpoint, defaults)
    known, model = tokenizer.get_vocab_size(with_added_tokens=False), config.get("vocab_size", 0)
    if known > model:
        what = f"has {known} tokens and the model {model}"
        raise UsageError(what, path=folder, fix="use the tokenizer of this model")
    named = _pad_token(checkpoint) or pad
    pad_id = tokenizer.token_to_id(named) if named else None
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(
        length=tokens, pad_id=(config.get("pad_token_id") or 0) if pad_id is None else pad_id
    )
    return tokenizer


def _load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    from tokenizers import Tokenizer

    folder = checkpoint.tokenizer_folder
    path = folder / _TOKENIZER
    try:
        if path.is_file():
            return Tokenizer.from_file(str(path))
        if set(_PARTS) <= {*checkpoint.layout.tokenizer} and all(
            (folder / name).is_file() for name in _PARTS
        ):
            from transformers import CLIPTokenizer

            built = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
            found: Tokenizer = built.backend_tokenizer
            return found
    except Exception as error:  # tokenizers raises nothing more exact
        what = f"is not a tokenizer ({error})"
        raise UsageError(what, path=path, fix="download the model again") from error
    fix = "write one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    raise InputMissingError(f"has no {_TOKENIZER}", path=checkpoint.asked, fix=fix)


def _pad_token(checkpoint: Checkpoint) -> str | None:
    """Read which token a pipeline pads with, if the layout has the files that say it."""
    for name in _SPECIAL_TOKENS:
        path = checkpoint.tokenizer_folder / name
        if name in checkpoint.layout.tokenizer and path.is_file():
            found = checkpoint.read(name, path.parent).get("pad_token")
            if isinstance(found, dict):
                found = found.get("content")
            if isinstance(found, str):
                return found
    return None
