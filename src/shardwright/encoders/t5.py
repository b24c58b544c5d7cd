"""T5: the last hidden state of the text encoder, one row a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import Options, TextEncoder, Tokens
from shardwright.encoders.checkpoints import Checkpoint, Layout
from shardwright.encoders.devices import Pretrained, find_model, run
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER = "tokenizer.json"
_LAYOUT = Layout(("config.json", _TOKENIZER), "model")


class T5Encoder(Pretrained):
    """The encoder half of a T5."""

    library, kind = "transformers", "T5EncoderModel"

    def __init__(self, component: Component, checkpoint: Checkpoint, options: Options) -> None:
        super().__init__(component, checkpoint, options)
        self._tokenizer = read_tokenizer(checkpoint, component.tokens)

    def prepare(self, caption: str) -> Tokens:
        found = self._tokenizer.encode(caption)
        ids, mask = np.array(found.ids, np.int64), np.array(found.attention_mask, np.uint8)
        # What was cut off comes in further pieces, each with its own end token.
        lost = sum(piece.special_tokens_mask.count(0) for piece in found.overflowing)
        kept = max((end for _, end in found.offsets), default=0)
        return Tokens(ids, mask, lost, kept if lost else None)

    def encode(self, ids: NDArray[np.int64], mask: NDArray[np.uint8]) -> NDArray[np.float32]:
        import torch

        model = self._model

        def compute() -> torch.Tensor:
            tokens = torch.from_numpy(ids).to(self.device)
            attention = torch.from_numpy(mask).to(self.device).long()
            return model(input_ids=tokens, attention_mask=attention).last_hidden_state

        return run(compute)

    def describe(self) -> dict[str, Any]:
        return self._description("last_hidden_state", tokens=self.component.tokens)


def load(component: Component, options: Options) -> TextEncoder:
    """Find the checkpoint, and refuse one that does not make this component."""
    packages = ("torch", "transformers", "tokenizers")
    checkpoint = find_model(component, options, packages, _LAYOUT)
    config = checkpoint.config("model_type", "t5")
    checkpoint.require_shape((component.tokens, config.get("d_model")), component.shape)
    return T5Encoder(component, checkpoint, options)


def read_tokenizer(checkpoint: Checkpoint, tokens: int) -> Tokenizer:
    """Load the checkpoint's own tokenizer; it pads and cuts every caption to so many tokens.

    Without transformers' wrapper, which sets padding and truncation again on every call: that is
    not safe in threads.
    """
    from tokenizers import Tokenizer

    path = checkpoint.folder / _TOKENIZER
    if not path.is_file():
        fix = "write one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise InputMissingError(f"has no {_TOKENIZER}", path=checkpoint.asked, fix=fix)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more exact
        what = f"is not a tokenizer ({error})"
        raise UsageError(what, path=path, fix="download the model again") from error
    config = checkpoint.read("config.json")
    if tokenizer.get_vocab_size() > config.get("vocab_size", 0):
        what = f"has {tokenizer.get_vocab_size()} tokens and the model {config.get('vocab_size')}"
        raise UsageError(what, path=path, fix="use the tokenizer of this model")
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=config.get("pad_token_id", 0))
    return tokenizer
