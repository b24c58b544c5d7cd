"""The sketch encoders: held to the contract of all encoders, and to meaning something."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwright.encoders import load, require_choice
from shardwright.encoders.base import ImageEncoder, Options, TextEncoder
from shardwright.encoders.contract import ImageEncoderContract, TextEncoderContract, picture
from shardwright.encoders.sketch import BlockTransform, Descriptor, HashedWords, Patches, decode
from shardwright.errors import UsageError
from shardwright.recipes import ANY, SPECIFICATION, Component, Mask, Side

DINO, VAE, T5 = SPECIFICATION.components


def component(*shape: Any, dtype: str = "<f4", **more: Any) -> Component:  # noqa: ANN401
    return Component("some", "some", "some.npy", dtype, shape, encoder="mine", **more)


def latent(channels: int, divisor: int, dtype: str = "<f2") -> Component:
    return component(channels, Side("height", divisor), Side("width", divisor), dtype=dtype)


def caption(*shape: Any, tokens: int | None = None, **more: Any) -> Component:  # noqa: ANN401
    settings = {} if tokens is None else {"tokens": tokens}
    return component(*shape, source="caption", settings=settings, **more)


def encoded(made: Component, text: str) -> NDArray[Any]:
    encoder: Any = load("sketch", made, Options(), {})
    tokens = encoder.prepare(text)
    return np.asarray(encoder.encode(tokens.ids[None], tokens.mask[None])[0])


class Sketched(ImageEncoderContract):
    rounding = 0
    component: Component

    def load(self) -> ImageEncoder:
        encoder: Any = load("sketch", self.component, Options(), {})
        made: ImageEncoder = encoder
        return made


class SketchedText(TextEncoderContract):
    rounding = 0
    component: Component

    def load(self) -> TextEncoder:
        encoder: Any = load("sketch", self.component, Options(), {})
        made: TextEncoder = encoder
        return made


class TestBlockTransform(Sketched):
    component = VAE


class TestLatentOfTheFewestChannels(Sketched):
    component = latent(2, 8, "bfloat16")


class TestLatentOfTheMostChannels(Sketched):
    component = latent(128, 16)
    sizes = ((64, 64), (96, 40), (67, 45))


class TestMapOfIntegers(Sketched):
    component = component(Side("height", 8), Side("width", 4), dtype="|u1")


class TestPixels(Sketched):
    component = component(Side("height", 1), Side("width", 1), 3, dtype="<f8")


class TestDescriptor(Sketched):
    component = DINO


class TestShortVector(Sketched):
    component = component(7, dtype="bfloat16")


class TestLongVector(Sketched):
    component = component(1536)


class TestVectorOfIntegers(Sketched):
    component = component(300, dtype="|i1")


class TestPatches(Sketched):
    component = component(196, 384, dtype="<f2")


class TestFreeAxis(Sketched):
    component = component(ANY, 133, 3, dtype="<f2")


class TestOneSide(Sketched):
    component = component(Side("width", 2), 5)


class TestHashedWords(SketchedText):
    component = T5


class TestManyWideWords(SketchedText):
    component = caption(512, 4096, dtype="bfloat16", mask=Mask("m", "m.npy", 512), trim=True)


class TestMeanOfWords(SketchedText):
    component = caption(768, tokens=77)


class TestWordsOnAFreeAxis(SketchedText):
    component = caption(ANY, 32, dtype="<i2")


class TestWordsInLayers(SketchedText):
    component = caption(3, 20, 16, mask=Mask("m", "m.npy", 20))


def test_arrays_of_the_specification_are_those_that_stores_hold() -> None:
    source = (np.arange(64 * 96 * 3) * 7919 // 64 % 256).astype(np.uint8).reshape(64, 96, 3)
    assert digest(BlockTransform(VAE).prepare(source)) == "0dfa8a357be6bbcb"
    assert digest(encoded(T5, "a red kite")) == "d6bd57cc7fbb9b4e"
    vector = Descriptor(DINO).prepare(source)
    expected = [-0.06868864, 0.00312499, 0.00946251, 0]
    assert vector[[0, 200, 500, 1000]] == pytest.approx(expected, abs=1e-6)
    made = {"encoder": "sketch", "version": 1}
    factors = {"scaling_factor": 1.0, "shift_factor": 0.0}
    assert BlockTransform(VAE).describe() == {**made, "model": "block-dct", **factors}
    assert Descriptor(DINO).describe() == {**made, "model": "colours-and-edges"}
    assert HashedWords(T5).describe() == {**made, "model": "hashed-words"}


def digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("of", "most"),
    [(VAE, 8), (latent(4, 8), 12), (latent(128, 8), 4), (latent(32, 16), 10), (latent(3, 1), 1)],
    ids=lambda value: str(value) if isinstance(value, int) else f"{value.shape}",
)
def test_a_latent_decodes_to_a_recognisable_picture(of: Component, most: int) -> None:
    soft = picture(256, 192, seed=3)
    back = decode(BlockTransform(of).prepare(soft).astype(np.float16), of)
    assert back.shape == soft.shape
    other = picture(256, 192, seed=4)
    wrong = decode(BlockTransform(of).prepare(other).astype(np.float16), of)
    apart = np.abs(back.astype(int) - soft).mean()
    assert apart < most, "little more than the noise that the picture was made with"
    assert np.abs(wrong.astype(int) - soft).mean() > 4 * apart


def test_a_latent_without_a_component_is_decoded_as_one_of_8x8_blocks() -> None:
    made = BlockTransform(VAE).prepare(picture(64, 32))
    assert np.array_equal(decode(made), decode(made, VAE))


@settings(max_examples=40, deadline=None)
@given(
    st.permutations([2, 3, Side("height", 4), Side("width", 2)]),
    st.sampled_from(["<f4", "bfloat16"]),
)
def test_the_axes_of_a_latent_may_have_any_order(shape: list[int | Side], dtype: str) -> None:
    flat = np.full((16, 24, 3), (200, 30, 90), np.uint8)
    of = component(*shape, dtype=dtype)
    made = BlockTransform(of).prepare(flat)
    assert made.shape == of.shape_for(24, 16)
    assert np.abs(decode(made, of).astype(int) - flat).max() <= 1


def test_channels_beyond_the_frequencies_of_a_block_are_zero() -> None:
    of = latent(16, 2, "<f4")
    source = picture(64, 64)
    made = BlockTransform(of).prepare(source)
    assert made[:12].any(axis=(1, 2)).all()
    assert not made[12:].any()
    assert np.abs(decode(made, of).astype(int) - source).max() <= 1, "all frequencies are there"


def test_a_flat_picture_decodes_exactly() -> None:
    flat = np.empty((16, 24, 3), np.uint8)
    flat[:] = (200, 30, 90)
    back = decode(BlockTransform(VAE).prepare(flat))
    assert np.abs(back.astype(int) - flat).max() <= 1


@pytest.mark.parametrize("length", [1024, 384, 2048])
def test_like_pictures_have_near_descriptors(length: int) -> None:
    encoder = Descriptor(replace(DINO, shape=(length,)))
    one, brighter, other = (
        encoder.prepare(p)
        for p in (
            picture(200, 200, 1),
            np.clip(picture(200, 200, 1).astype(int) + 8, 0, 255).astype(np.uint8),
            picture(200, 200, 2),
        )
    )
    assert np.linalg.norm(one - brighter) < 0.5 * np.linalg.norm(one - other)
    if length == 1024:
        assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)


def test_a_patch_shows_its_cell_of_the_picture() -> None:
    encoder = Patches(component(16, 194))
    one, other = picture(64, 64, 1), picture(64, 64, 1)
    other[16:32, 32:48] = 0  # the third of the second row
    differ = (encoder.prepare(one) != encoder.prepare(other)).any(axis=1)
    assert differ.nonzero()[0].tolist() == [6]


def test_patches_of_a_plain_picture_differ_by_their_places() -> None:
    made = Patches(component(256, 1024)).prepare(np.full((64, 64, 3), 255, np.uint8))
    assert len(np.unique(made, axis=0)) == 256


def test_captions_share_the_rows_of_their_common_words() -> None:
    encoder = HashedWords(T5)
    red, blue = encoder.prepare("a red kite"), encoder.prepare("A blue kite!")
    rows = encoder.encode(np.stack([red.ids, blue.ids]), np.stack([red.mask, blue.mask]))
    same = [bool((rows[0, n] == rows[1, n]).all()) for n in range(5)]
    assert same == [True, False, True, False, False]  # the end stands against the "!"
    assert not rows[0, 4:].any(), "padding is zero"


def test_the_vector_of_a_caption_is_the_mean_of_its_words() -> None:
    rows = encoded(caption(9, 40), "a red kite")
    vector = encoded(caption(40, tokens=9), "a red kite")
    assert np.allclose(vector, rows[:4].mean(axis=0))
    assert load("sketch", caption(40, tokens=9), Options(), {}).describe() == {
        "encoder": "sketch",
        "model": "hashed-words",
        "version": 1,
        "output": "mean",
        "tokens": 9,
    }


def test_a_caption_of_one_token_is_its_end() -> None:
    tokens = HashedWords(caption(1, 8)).prepare("a red kite")
    assert (tokens.mask.tolist(), tokens.lost, tokens.cut_at) == ([1], 3, 0)


AXES = st.one_of(
    st.integers(1, 40),
    st.builds(Side, st.sampled_from(["width", "height"]), st.sampled_from([1, 2, 8, 32])),
    st.just(ANY),
)
DTYPES = st.sampled_from(["<f2", "<f4", "<f8", "bfloat16", "|u1", "<u4", "|i1", "<i8", "|b1"])


@settings(max_examples=60, deadline=None)
@given(st.lists(AXES, min_size=1, max_size=4), DTYPES)
def test_a_picture_has_an_array_of_any_shape(shape: list[Any], dtype: str) -> None:
    of = component(*shape, dtype=dtype)
    encoder: Any = load("sketch", of, Options(), {})
    prepared = encoder.prepare(picture(64, 96))
    (made,) = encoder.encode(prepared[None])
    assert of.fits(made.shape, 64, 96)
    assert of.is_float == (made.dtype.kind == "f")
    if of.dtype != "bfloat16":
        assert np.isfinite(made.astype(dtype)).all()
        assert of.is_float or np.array_equal(made.astype(dtype), made)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 40), st.just(ANY)), min_size=1, max_size=3), DTYPES)
def test_a_caption_has_an_array_of_any_shape(shape: list[Any], dtype: str) -> None:
    of = caption(*shape, dtype=dtype)
    for text in ("a red kite", ""):
        made = encoded(of, text)
        assert of.accepts(made.shape)
        assert of.is_float == (made.dtype.kind == "f")


@pytest.mark.parametrize("missing", [{"dtype": ""}, {"shape": ()}])
def test_a_component_of_unknown_shape_is_refused(missing: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        load("sketch", replace(VAE, **missing), Options(), {})
    assert str(caught.value) == (
        "--encoders sketch: the shape of vae is unknown; "
        "add dtype and shape to [component.vae] in the recipe"
    )


def test_a_component_of_another_tool_is_not_sketched() -> None:
    with pytest.raises(UsageError, match="some is made by another tool; leave some out"):
        load("sketch", component(5, source="elsewhere"), Options(), {})


def test_unknown_encoders_are_refused() -> None:
    with pytest.raises(UsageError, match="choose from pretrained, sketch"):
        require_choice("guess")
