"""Latents as pictures: each way to show them, compared with the pictures that they are of."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from shardwright.encoders.base import Picture
from shardwright.encoders.sketch import BlockTransform
from shardwright.errors import DamageError
from shardwright.looking.latents import Pair, Preview, agreement, choose, heat
from shardwright.recipes import ANY, SPECIFICATION, Component, Side
from tests.derive.encoders.models import with_model

VAE = SPECIFICATION.by_name["vae"]
FLUX = {"encoder": "AutoencoderKL", "scaling_factor": 0.3611, "shift_factor": 0.1159}
SKETCH = {"encoder": "sketch", "scaling_factor": 1.0, "shift_factor": 0.0}
MARK = (255, 0, 128)
GREY = (128, 128, 128)


def own(preview: Preview, pairs: Iterable[Pair]) -> float | None:
    """How the previews agree with their own pictures."""
    found = agreement(preview, pairs)
    return None if found is None else found.own


def latent(*shape: Any, dtype: str = "<f2") -> Component:  # noqa: ANN401 - axes
    return Component("code", "codes", "code.npy", dtype, shape, encoder="autoencoder")


def over(channels: int, factor: int = 8) -> Component:
    return latent(channels, Side("height", factor), Side("width", factor))


def painted(number: int, width: int = 192, height: int = 128) -> Picture:
    """Paint shapes of any colour and place."""
    draw = random.Random(number)

    def colour() -> tuple[int, int, int]:
        return draw.randrange(256), draw.randrange(256), draw.randrange(256)

    image = Image.new("RGB", (width, height), colour())
    brush = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, radius = draw.randrange(width), draw.randrange(height), draw.randrange(10, 50)
        shape = draw.choice([brush.ellipse, brush.rectangle])
        shape((x - radius, y - radius, x + radius, y + radius), fill=colour())
    return np.array(image)


PICTURES = [painted(number) for number in range(24)]


def nothing() -> Iterable[Pair]:
    raise AssertionError("no pictures are needed")


def trained(source: Picture, channels: int = 8, seed: int = 0) -> NDArray[Any]:
    """Encode as a small trained model would: a mixed, bent and noisy view of each 8x8 block."""
    chance = np.random.default_rng(seed)
    mixing = np.linalg.qr(chance.normal(size=(channels, channels)))[0]
    rows, columns = source.shape[0] // 8, source.shape[1] // 8
    blocks = source.astype(np.float32).reshape(rows, 8, columns, 8, 3) / 127.5 - 1
    means = blocks.mean(axis=(1, 3))
    down = blocks[:, 4:].mean(axis=(1, 3)) - blocks[:, :4].mean(axis=(1, 3))
    across = blocks[:, :, :, 4:].mean(axis=(1, 3)) - blocks[:, :, :, :4].mean(axis=(1, 3))
    known = np.concatenate([means, down, across], axis=-1)[..., :channels]
    bent = np.tanh(known @ mixing[: known.shape[-1]] * 1.6) * 3
    noisy = bent + np.random.default_rng(7).normal(size=bent.shape) * 0.1
    made: NDArray[Any] = np.moveaxis(noisy, -1, 0).astype(np.float16)
    return made


def pairs_of(encode: Callable[[Picture], NDArray[Any]], count: int = 24) -> list[Pair]:
    return [(encode(source), source) for source in PICTURES[:count]]


# Sketched


@pytest.mark.parametrize(
    "of",
    [
        VAE,
        over(4),
        over(32, 16),
        latent(Side("height", 8), Side("width", 8), 16),
        latent(Side("width", 8), 2, Side("height", 8), 3),
        latent(16, Side("height", 8), Side("width", 8), dtype="|u1"),
        latent(16, Side("height", 8), Side("width", 8), dtype="<i2"),
        latent(16, Side("height", 8), Side("width", 8), dtype="bfloat16"),
    ],
    ids=lambda of: f"{of.dtype} {of.shape}",
)
def test_sketched_latents_show_their_pictures(of: Component) -> None:
    preview = choose(of, SKETCH, nothing)
    assert preview is not None
    assert preview.label == "sketch, decoded"
    pairs = pairs_of(BlockTransform(of).prepare, 6)
    assert preview.picture(pairs[0][0]).shape == PICTURES[0].shape
    found = own(preview, pairs)
    assert found is not None
    assert found > 0.95


def test_latents_of_other_pictures_do_not_agree() -> None:
    preview = choose(VAE, SKETCH, nothing)
    assert preview is not None
    pairs = pairs_of(BlockTransform(VAE).prepare)
    shuffled = [(made, source) for (made, _), (_, source) in pairwise(pairs)]
    found = own(preview, shuffled)
    assert found is not None
    assert abs(found) < 0.3


def test_latents_of_another_model_do_not_agree() -> None:
    preview = choose(over(8), SKETCH, nothing)
    assert preview is not None
    found = own(preview, pairs_of(trained))
    assert found is not None
    assert found < 0.6


def test_a_large_sketch_is_shown_in_part() -> None:
    of = over(64, 32)
    preview = choose(of, SKETCH, nothing)
    assert preview is not None
    huge = np.zeros((64, 100, 150), np.float16)
    huge[0, :, 75:] = 2
    shown = preview.picture(huge)
    assert shown.size < 100 * 150 * 32 * 32
    assert shown[:, : shown.shape[1] // 2 - 32].mean() < shown[:, shown.shape[1] // 2 + 32 :].mean()


# By the published factors of FLUX.1


def flux_latent(source: Picture) -> NDArray[np.float16]:
    """Invert the linear map, of means of blocks: the shortest latent that gives these colours."""
    from shardwright.encoders import rgb

    small = np.asarray(Image.fromarray(source).resize((24, 16), Image.Resampling.BOX)) / 127.5 - 1
    scaled = (small - rgb._FLUX_BIAS) @ np.linalg.pinv(rgb._FLUX_WEIGHTS)
    made: NDArray[np.float16] = np.moveaxis(scaled / 0.3611 + 0.1159, -1, 0).astype(np.float16)
    return made


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_latents_of_flux_are_shown_by_its_published_factors(order: tuple[int, ...]) -> None:
    shape = [VAE.shape[axis] for axis in order]
    preview = choose(latent(*shape), FLUX, nothing)
    assert preview is not None
    assert preview.label == "linear map of FLUX.1"
    shown = preview.picture(flux_latent(PICTURES[0]).transpose(order))
    small = np.asarray(Image.fromarray(PICTURES[0]).resize((24, 16), Image.Resampling.BOX))
    assert np.abs(shown.astype(int) - small).max() <= 2
    turned = [(flux_latent(source).transpose(order), source) for source in PICTURES]
    assert (own(preview, turned) or 0) > 0.99


def test_the_factors_of_flux_are_applied_after_scale_and_shift() -> None:
    preview = choose(VAE, FLUX, nothing)
    assert preview is not None
    values = np.full((16, 1, 1), 0.1159, np.float32)
    bias = np.array([-0.0329, -0.0718, -0.0851])
    expected = ((bias + 1) / 2 * 255).round()
    assert preview.picture(values)[0, 0].tolist() == expected.tolist()
    values[4] += 1 / 0.3611
    expected = ((bias + (0.0859, 0.0721, 0.0329) + 1) / 2 * 255).round()
    assert preview.picture(values)[0, 0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (VAE, FLUX | {"scaling_factor": 1.5305, "shift_factor": 0.0609}),  # Stable Diffusion 3
        (over(32), FLUX),
        (VAE, {}),
        (VAE, FLUX | {"scaling_factor": "0.3611"}),
        (VAE, FLUX | {"scaling_factor": 10**400}),
        (VAE, FLUX | {"shift_factor": float("nan")}),
        (VAE, FLUX | {"shift_factor": None}),
        (VAE, {"encoder": ["sketch"], "model": {"a": "b"}, "scaling_factor": [0.3611]}),
        (VAE, {"encoder": "os:system", "model": "/etc/passwd", "revision": 3}),
        (latent(4, Side("height", 9999), Side("width", 9999)), SKETCH),
        (dataclasses.replace(VAE, dtype="|b1"), SKETCH),
    ],
)
def test_others_are_not_taken_for_known_ones(of: Component, said: dict[str, Any]) -> None:
    assert choose(of, said, list) is None


@pytest.mark.parametrize(
    "of",
    [
        latent(16, Side("height", 8)),
        latent(1024),
        latent(Side("height", 8), Side("height", 8)),
        dataclasses.replace(VAE, suffix="picture.png"),
        dataclasses.replace(VAE, dtype=""),
    ],
)
def test_what_does_not_lie_over_the_picture_has_no_preview(of: Component) -> None:
    assert choose(of, SKETCH, nothing) is None


# By fitted factors


def test_any_other_latents_are_shown_by_a_linear_fit() -> None:
    preview = choose(over(8), {}, lambda: pairs_of(trained, 16))
    assert preview is not None
    assert preview.label == (
        "linear fit on 16 pictures, error 3 % of the range, 30 % for a plain colour"
    )
    unseen = pairs_of(trained)[16:]
    assert (own(preview, unseen) or 0) > 0.95
    assert preview.picture(unseen[0][0]).shape == (16, 24, 3)
    apart = np.abs(
        preview.picture(unseen[0][0]).astype(int)
        - np.asarray(Image.fromarray(unseen[0][1]).resize((24, 16), Image.Resampling.BOX))
    )
    assert apart.mean() < 20


def test_a_fit_on_latents_of_other_pictures_says_that_it_is_no_better_than_a_colour() -> None:
    pairs = pairs_of(trained)
    shuffled = [(made, source) for (made, _), (_, source) in pairwise(pairs)]
    preview = choose(over(8), {}, lambda: shuffled)
    assert preview is not None
    words = preview.label.split()
    error, plain = (int(words[n - 1]) for n, word in enumerate(words) if word == "%")
    assert error > 0.9 * plain
    assert abs(own(preview, shuffled) or 0) < 0.4


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint8", "bool"])
def test_latents_of_any_dtype_are_fitted(dtype: str) -> None:
    def encode(source: Picture) -> NDArray[Any]:
        made = trained(source).astype(np.float64)
        if dtype == "bool":
            return made > 0
        low = 0 if dtype == "uint8" else -120
        return (made * 20 + 120 + low).round().clip(low, low + 240).astype(dtype)

    of = dataclasses.replace(over(8), dtype=np.dtype(dtype).str)
    preview = choose(of, {}, lambda: pairs_of(encode))
    assert preview is not None
    assert (own(preview, pairs_of(encode)) or 0) > (0.7 if dtype == "bool" else 0.9)


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1)])
def test_channels_may_be_on_any_axis(order: tuple[int, ...]) -> None:
    of = latent(*(over(8).shape[axis] for axis in order))
    pairs = [(made.transpose(order), source) for made, source in pairs_of(trained)]
    preview = choose(of, {}, lambda: pairs)
    assert preview is not None
    assert (own(preview, pairs) or 0) > 0.95


def test_dependent_and_constant_channels_do_no_harm() -> None:
    def encode(source: Picture) -> NDArray[Any]:
        made = trained(source)
        return np.concatenate([made, made[::-1] * 2, np.full_like(made, 3)])

    preview = choose(over(24), {}, lambda: pairs_of(encode))
    assert preview is not None
    assert (own(preview, pairs_of(encode)) or 0) > 0.95


def test_of_thousands_of_channels_some_are_used() -> None:
    def encode(source: Picture) -> NDArray[Any]:  # the pixels of each block, as they are
        blocks = source.reshape(4, 32, 6, 32, 3).transpose(1, 3, 4, 0, 2)
        return blocks.reshape(3072, 4, 6).astype(np.float16)

    of = over(3072, 32)
    many = [painted(number, 192, 128) for number in range(60)]
    pairs = [(encode(source), source) for source in many]
    preview = choose(of, {}, lambda: pairs)
    assert preview is not None
    assert (own(preview, pairs) or 0) > 0.6, "24 places a picture"


def test_values_that_are_not_finite_are_left_out_of_a_fit_and_marked() -> None:
    pairs = pairs_of(trained)
    for number, value in ((0, np.nan), (1, np.inf), (2, -np.inf)):
        pairs[number][0][3, 5, 7] = value
    pairs[3][0][:] = np.nan
    preview = choose(over(8), {}, lambda: pairs)
    assert preview is not None
    assert preview.label.startswith("linear fit on 23 pictures, error 3 %")
    for number in range(3):
        shown = preview.picture(pairs[number][0])
        assert (shown == MARK).all(axis=-1).sum() == 1
        assert tuple(shown[5, 7]) == MARK
    sketched = choose(over(8), SKETCH, nothing)
    assert sketched is not None
    marked = (sketched.picture(pairs[0][0]) == MARK).all(axis=-1)
    assert marked[40:48, 56:64].all()
    assert marked.sum() == 64


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        pairs_of(trained, 3),
        [(np.full((8, 16, 24), np.nan), source) for source in PICTURES],
        [(trained(source)[:, :1, :1], source) for source in PICTURES[:6]],
        [(trained(source)[:4], source) for source in PICTURES],
        [(np.array(["a"] * 8).reshape(8, 1, 1), source) for source in PICTURES],
        [(trained(source), np.full_like(source, 90)) for source in PICTURES],
    ],
    ids=["none", "few", "nan", "few places", "other channels", "texts", "plain pictures"],
)
def test_where_nothing_can_be_fitted_there_is_no_preview(pairs: list[Pair]) -> None:
    assert choose(over(8), {}, lambda: pairs) is None


def test_channels_of_no_fixed_number_are_not_fitted() -> None:
    assert choose(latent(ANY, Side("height", 8), Side("width", 8)), {}, nothing) is None


def test_constant_latents_give_the_mean_colour() -> None:
    pairs = [(np.ones((8, 16, 24), np.float32), source) for source in PICTURES]
    preview = choose(over(8), {}, lambda: pairs)
    assert preview is not None
    shown = preview.picture(pairs[0][0])
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) == 1
    assert own(preview, pairs) is None


def test_an_array_that_is_not_a_latent_is_refused() -> None:
    preview = choose(VAE, FLUX, nothing)
    assert preview is not None
    shapes = ((4, 8, 8), (16,), (16, 0, 8))
    for wrong in (*map(np.zeros, shapes), np.full((16, 2, 2), "a")):
        with pytest.raises(DamageError, match=r"vae: an array of .* is not a latent; verify"):
            preview.picture(wrong)
    assert own(preview, [(np.zeros(16), PICTURES[0])]) is None


def test_values_of_any_size_are_shown() -> None:
    huge = np.full((16, 4, 4), 1e300)
    huge[:, :2] = -1e300
    for said in (FLUX, SKETCH):
        preview = choose(VAE, said, nothing)
        assert preview is not None
        assert preview.picture(huge).dtype == np.uint8


# Decoded by the model


def test_without_decode_no_model_is_looked_for() -> None:
    preview = choose(with_model(VAE, "/no/such/folder"), FLUX, nothing)
    assert preview is not None
    assert preview.label == "linear map of FLUX.1"


def test_sketched_latents_are_never_decoded_by_a_model() -> None:
    preview = choose(with_model(VAE, "/no/such/folder"), SKETCH, nothing, decode=True)
    assert preview is not None
    assert preview.label == "sketch, decoded"


def test_encoders_of_the_user_are_not_imported_to_decode(tmp_path: Path) -> None:
    own = dataclasses.replace(over(8), encoder="antigravity:Class", settings={"model": "x"})
    preview = choose(own, {}, lambda: pairs_of(trained), decode=True)
    assert preview is not None
    assert preview.label.startswith("linear fit")
    assert "antigravity" not in sys.modules


# Heat maps


def luminance(picture: Picture) -> NDArray[np.float64]:
    found: NDArray[np.float64] = picture @ np.array([0.299, 0.587, 0.114])
    return found


def test_a_larger_number_is_lighter() -> None:
    shown = luminance(heat(np.arange(100.0).reshape(1, 100)))[0]
    assert (np.diff(shown[1:99]) > 0).all()
    assert shown[-1] - shown[0] > 150


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (np.arange(1024.0), (32, 32)),
        (np.arange(1000.0), (32, 32)),
        (np.arange(7), (3, 3)),
        (np.array(3.0), (1, 1)),
        (np.ones(1, bool), (1, 1)),
        (np.zeros((77, 1024), np.float16), (77, 128)),
        (np.zeros((16, 100, 150), np.float16), (100, 128)),
        (np.zeros((2, 3, 5, 6, 7), np.int8), (6, 7)),
        (np.zeros(3_000_000, np.uint8), (128, 128)),
        (np.zeros((9_000_000, 2, 1), np.uint8), (1, 1)),
        (np.zeros((1, 20_000_000), np.uint8), (1, 128)),
        (np.zeros((20_000_000, 1), np.uint8), (128, 1)),
        (np.zeros((0, 8)), (1, 1)),
        (np.array(["a", "b"]), (1, 1)),
        (np.array([1j]), (1, 1)),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else "",
)
def test_every_array_has_a_small_picture(array: NDArray[Any], size: tuple[int, int]) -> None:
    shown = heat(array)
    assert shown.shape == (*size, 3)
    assert shown.dtype == np.uint8


def test_a_vector_is_a_grid_in_reading_order() -> None:
    shown = heat(np.array([0, 1, 2, 3, 4, 5, 6.0]))
    light = luminance(shown).ravel()
    assert (np.diff(light[:7]) > 0).all()
    assert [tuple(colour) for colour in shown.reshape(-1, 3)[7:]] == [GREY, GREY]


def test_a_map_shows_the_mean_of_its_channels() -> None:
    values = np.zeros((16, 8, 12), np.float32)
    values[:, 2, 3] = np.arange(16)
    assert np.array_equal(heat(values), heat(values.mean(axis=0)))
    last = latent(Side("height", 8), Side("width", 8), 16)
    assert np.array_equal(heat(np.moveaxis(values, 0, -1), last), heat(values))


def test_few_extreme_numbers_do_not_hide_the_others() -> None:
    values = np.linspace(0, 1, 1000)
    values[17] = 1e300
    assert np.ptp(luminance(heat(values)).ravel()[20:1000]) > 150


def test_one_number_that_is_not_finite_is_seen_in_a_large_array() -> None:
    for value in (np.nan, np.inf):
        values = np.random.default_rng(0).normal(size=(3, 500, 700)).astype(np.float16)
        values[1, 250, 350] = value
        marked = np.argwhere((heat(values) == MARK).all(axis=-1))
        assert marked.tolist() == [[64, 64]]
    assert (heat(np.full((4, 4), np.nan)) == MARK).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=4).filter(lambda shape: np.prod(shape) < 1e6),
    st.sampled_from(["?", "i1", "u8", "i8", "f2", "f4", "f8", "U1", "c8"]),
    st.integers(0, 2**32),
)
def test_any_bytes_have_a_picture(shape: list[int], dtype: str, seed: int) -> None:
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * (1 if kind.kind != "U" else 0)
    data = np.random.default_rng(seed).bytes(count * kind.itemsize)
    array = np.frombuffer(data, kind).reshape(shape) if count else np.zeros(shape, kind)
    shown = heat(array)
    assert max(shown.shape) <= 128
    assert shown.shape[2:] == (3,)
