"""The sketch encoders: held to the contract of all encoders, and to meaning something."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.encoders import require_choice
from shardwright.encoders.base import ImageEncoder, TextEncoder
from shardwright.encoders.contract import ImageEncoderContract, TextEncoderContract, picture
from shardwright.encoders.sketch import BlockTransform, Descriptor, HashedWords, decode
from shardwright.errors import UsageError
from shardwright.recipes import SPECIFICATION

DINO, VAE, T5 = SPECIFICATION.components


class TestBlockTransform(ImageEncoderContract):
    rounding = 0
    sizes = ((64, 64), (96, 40), (8, 8))  # the pipeline cuts sides to multiples of eight

    def load(self) -> ImageEncoder:
        return BlockTransform(VAE)


class TestDescriptor(ImageEncoderContract):
    rounding = 0

    def load(self) -> ImageEncoder:
        return Descriptor(DINO)


class TestHashedWords(TextEncoderContract):
    rounding = 0

    def load(self) -> TextEncoder:
        return HashedWords(T5)


def test_a_latent_decodes_to_a_recognisable_picture() -> None:
    soft = picture(256, 192, seed=3)
    latent = BlockTransform(VAE).prepare(soft).astype(np.float16)
    back = decode(latent)
    assert back.shape == soft.shape
    wrong = decode(BlockTransform(VAE).prepare(picture(256, 192, seed=4)).astype(np.float16))
    apart = np.abs(back.astype(int) - soft).mean()
    assert apart < 8, "no more than the noise that the picture was made with"
    assert np.abs(wrong.astype(int) - soft).mean() > 5 * apart


def test_a_flat_picture_decodes_exactly() -> None:
    flat = np.empty((16, 24, 3), np.uint8)
    flat[:] = (200, 30, 90)
    back = decode(BlockTransform(VAE).prepare(flat))
    assert np.abs(back.astype(int) - flat).max() <= 1


def test_like_pictures_have_near_descriptors() -> None:
    encoder = Descriptor(DINO)
    one, brighter, other = (
        encoder.prepare(p)
        for p in (
            picture(200, 200, 1),
            np.clip(picture(200, 200, 1).astype(int) + 8, 0, 255).astype(np.uint8),
            picture(200, 200, 2),
        )
    )
    assert np.linalg.norm(one - brighter) < 0.5 * np.linalg.norm(one - other)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)


def test_captions_share_the_rows_of_their_common_words() -> None:
    encoder = HashedWords(T5)
    red, blue = encoder.prepare("a red kite"), encoder.prepare("A blue kite!")
    rows = encoder.encode(np.stack([red.ids, blue.ids]), np.stack([red.mask, blue.mask]))
    same = [bool((rows[0, n] == rows[1, n]).all()) for n in range(5)]
    assert same == [True, False, True, False, False]  # the end stands against the "!"
    assert not rows[0, 4:].any(), "padding is zero"


def test_unknown_encoders_are_refused() -> None:
    with pytest.raises(UsageError, match="choose from pretrained, sketch"):
        require_choice("guess")
