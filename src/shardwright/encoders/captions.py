"""What the encoders of captions share: the tokenizer, a template, and which layer is taken."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardwright.encoders.base import Tokens
from shardwright.encoders.checkpoints import Checkpoint
from shardwright.encoders.pretrained import Pretrained
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes.keys import brief

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from torch import nn

TOKENIZER = "tokenizer.json"
SPECIAL_TOKENS = ("tokenizer_config.json", "special_tokens_map.json")
_PARTS = ("vocab.json", "merges.txt")  # of CLIP's, where there is no tokenizer.json
BYTE_PAIRS = (TOKENIZER, *_PARTS, *SPECIAL_TOKENS)


class CaptionEncoder(Pretrained):
    """A text model of transformers; it gives a row for each token."""

    packages = ("tokenizers",)
    pad: ClassVar[str | None] = None  # the padding token, if the checkpoint does not name it
    defaults: ClassVar[Mapping[str, int]] = {}  # what a configuration within another leaves out

    def _begin(self) -> None:
        checkpoint, tokens = self._checkpoint, self.component.tokens
        self._tokenizer = read_tokenizer(checkpoint, tokens, self.pad, self.defaults)
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

    def _input(self) -> tuple[object, ...]:
        component = self.component
        masked = component.settings["attention_mask"]
        return (component.field, component.tokens, self._template, masked)

    @property
    def _template(self) -> str:
        found: str = self.component.settings.get("template", "{caption}")
        return found

    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> Any:  # noqa: ANN401
        ids, mask = inputs
        masked = self.component.settings["attention_mask"]
        return self._call(model, input_ids=ids, attention_mask=mask.long() if masked else None)

    def _call(self, model: nn.Module, **tokens: torch.Tensor | None) -> Any:  # noqa: ANN401
        return model(**tokens)

    @cached_property
    def _layer(self) -> int:
        return layer_of(self._checkpoint, text_config(self._checkpoint, self.defaults))

    def _hidden_states(self, made: Any) -> torch.Tensor:  # noqa: ANN401 - the output of a model
        last = self._layer == -1
        found: torch.Tensor = made.last_hidden_state if last else made.hidden_states[self._layer]
        return found

    def _described(self, output: str | None = None) -> dict[str, Any]:
        """Describe it, without the settings that are as T5 has them by default."""
        if output is None:
            last = self._layer == -1
            output = "last_hidden_state" if last else f"hidden_states[{self._layer}]"
        more: dict[str, Any] = {"tokens": self.component.tokens}
        if self._template != "{caption}":
            more["template"] = self._template
        if not self.component.settings["attention_mask"]:
            more["attention_mask"] = False
        return self._description(output, **more)


def text_config(checkpoint: Checkpoint, defaults: Mapping[str, int]) -> dict[str, Any]:
    """Read the configuration of a text model, which may be part of a larger one."""
    config = checkpoint.read("config.json")
    return {**defaults, **config.get("text_config", config)}


def layer_of(checkpoint: Checkpoint, config: Mapping[str, Any]) -> int:
    """Give the layer that a component wants, counted from the end; raise if there is no such layer.

    -1 is after the last layer and its norm; the first is what goes into the layers.
    """
    layers = checkpoint.count(config, "num_hidden_layers")
    layer: int = checkpoint.component.settings["layer"]
    if not -layers - 1 <= layer <= layers:
        fix = f"give a number from {-layers - 1} to -1"
        raise checkpoint.refused("layer", layer, f"has {layers} layers", fix)
    return layer if layer < 0 else layer - layers - 1


def read_tokenizer(
    checkpoint: Checkpoint, tokens: int, pad: str | None, defaults: Mapping[str, int]
) -> Tokenizer:
    """Load the checkpoint's own tokenizer; it pads and cuts every caption to so many tokens.

    Without transformers' wrapper, which sets padding and truncation again on every call: that is
    not safe in threads.
    """
    folder = checkpoint.tokenizer_folder
    tokenizer = _load(checkpoint)
    config = text_config(checkpoint, defaults)
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


def _load(checkpoint: Checkpoint) -> Tokenizer:
    from tokenizers import Tokenizer

    folder = checkpoint.tokenizer_folder
    path = folder / TOKENIZER
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
    raise InputMissingError(f"has no {TOKENIZER}", path=checkpoint.asked, fix=fix)


def _pad_token(checkpoint: Checkpoint) -> str | None:
    """Read which token a pipeline pads with, if the layout has the files that say it."""
    for name in SPECIAL_TOKENS:
        path = checkpoint.tokenizer_folder / name
        if name in checkpoint.layout.tokenizer and path.is_file():
            found = checkpoint.read(name, path.parent).get("pad_token")
            if isinstance(found, dict):
                found = found.get("content")
            if isinstance(found, str):
                return found
    return None
