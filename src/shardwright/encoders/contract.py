"""What every encoder promises, as tests: subclass one of these to test your own encoder.

::

    class TestMine(ImageEncoderContract):
        def load(self) -> ImageEncoder:
            return MyEncoder(...)

pytest finds the methods through the subclass. They use NumPy and plain asserts only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import ImageEncoder, Picture, TextEncoder, Tokens
from shardwright.recipes import BFLOAT16, Component

Kind = TypeVar("Kind", ImageEncoder, TextEncoder)
Source = TypeVar("Source", Picture, str)

_LONG = "Über 東京 🙂 "  # as often as needed


class EncoderContract(Generic[Kind, Source]):
    """What every encoder promises."""

    rounding: ClassVar[float] = 1e-4  # how far a batch may move a value, relative to the largest

    def load(self) -> Kind:
        """Make the encoder, always with the same settings."""
        raise NotImplementedError

    def alone(self, encoder: Kind, source: Source) -> NDArray[Any]:
        """Encode one picture or caption by itself."""
        (array,) = self.together(encoder, [source])
        return np.asarray(array)

    def together(self, encoder: Kind, sources: list[Source]) -> Iterable[NDArray[Any]]:
        """Encode pictures of one size, or captions, in as few batches as possible."""
        raise NotImplementedError

    def sources(self) -> list[Source]:
        """Give different sources that can be batched."""
        raise NotImplementedError

    def test_description_is_json_and_does_not_change(self) -> None:
        encoder = self.load()
        before = encoder.describe()
        assert before.get("encoder"), "describe() must name the encoder"
        assert json.loads(json.dumps(before)) == before, "describe() must survive JSON unchanged"
        self.alone(encoder, self.sources()[0])
        assert encoder.describe() == before, "describe() differs after encode()"

    def test_a_second_encoder_of_the_same_settings_gives_the_same(self) -> None:
        one, other = self.load(), self.load()
        assert one.describe() == other.describe()
        for source in self.sources():
            assert _same(self.alone(one, source), self.alone(other, source))

    def test_arrays_are_numbers_that_the_component_can_hold(self) -> None:
        encoder = self.load()
        for source in self.sources():
            _require_numbers(self.alone(encoder, source), encoder.component)

    def test_a_batch_changes_nothing_beyond_rounding(self) -> None:
        encoder, sources = self.load(), self.sources()
        alone = [self.alone(encoder, source) for source in sources]
        for order in (range(len(sources)), reversed(range(len(sources)))):
            chosen = list(order)
            batch = self.together(encoder, [sources[number] for number in chosen])
            for array, number in zip(batch, chosen, strict=True):
                apart = np.abs(array.astype(float) - alone[number].astype(float)).max()
                assert apart <= self.rounding * np.abs(alone[number]).max(), f"moved by {apart}"

    def test_different_sources_give_different_arrays(self) -> None:
        encoder, sources = self.load(), self.sources()
        arrays = [self.alone(encoder, source) for source in sources]
        for number, array in enumerate(arrays):
            assert not any(_same(array, other) for other in arrays[:number])

    def test_prepare_may_run_in_many_threads(self) -> None:
        encoder: Any = self.load()  # of either kind
        sources = self.sources() * 8
        expected = [encoder.prepare(source) for source in sources]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(encoder.prepare, sources))
        for one, other in zip(expected, found, strict=True):
            assert all(map(np.array_equal, _arrays(one), _arrays(other)))


class ImageEncoderContract(EncoderContract[ImageEncoder, Picture]):
    """What encoders of pictures promise."""

    sizes: ClassVar[tuple[tuple[int, int], ...]] = ((64, 64), (96, 40), (67, 45), (8, 8))

    def together(self, encoder: ImageEncoder, sources: list[Picture]) -> Iterable[NDArray[Any]]:
        prepared = [encoder.prepare(picture) for picture in sources]
        made: dict[int, NDArray[Any]] = {}
        for shape in {array.shape for array in prepared}:  # with a free axis, they may differ
            same = [number for number, array in enumerate(prepared) if array.shape == shape]
            batch = encoder.encode(np.stack([prepared[number] for number in same]))
            made.update(zip(same, batch, strict=True))
        return [made[number] for number in range(len(sources))]

    def sources(self) -> list[Picture]:
        return [picture(72, 56, seed) for seed in range(3)]

    def test_shape_follows_the_picture(self) -> None:
        encoder = self.load()
        for width, height in self.sizes:
            array = self.alone(encoder, picture(width, height))
            _require_shape(array, encoder.component, width, height)

    def test_prepare_leaves_the_picture_alone(self) -> None:
        encoder = self.load()
        given = picture(72, 56)
        given.setflags(write=False)  # other encoders read the same picture
        encoder.prepare(given)
        assert np.array_equal(given, picture(72, 56))


class TextEncoderContract(EncoderContract[TextEncoder, str]):
    """What encoders of captions promise."""

    def together(self, encoder: TextEncoder, sources: list[str]) -> Iterable[NDArray[Any]]:
        tokens = [encoder.prepare(caption) for caption in sources]
        return encoder.encode(np.stack([t.ids for t in tokens]), np.stack([t.mask for t in tokens]))

    def sources(self) -> list[str]:
        return ["a red kite", "two cats asleep on a warm stone wall", _LONG * 40]

    def test_shape_is_the_component_s(self) -> None:
        encoder = self.load()
        for caption in self.sources():
            _require_shape(self.alone(encoder, caption), encoder.component)

    def test_no_caption_at_all_has_a_token_and_an_array(self) -> None:
        encoder = self.load()
        assert encoder.prepare("").mask.any(), "the empty caption has no token"
        array = self.alone(encoder, "")
        _require_shape(array, encoder.component)
        _require_numbers(array, encoder.component)

    def test_tokens_are_padded_and_cut_to_the_mask_s_length(self) -> None:
        encoder = self.load()
        length = len(encoder.prepare("").ids)
        if encoder.component.mask is not None:
            assert length == encoder.component.mask.length
        counts = []
        for caption in (*self.sources(), _LONG * length):
            tokens = encoder.prepare(caption)
            assert isinstance(tokens, Tokens)
            ids, mask = tokens.ids, tokens.mask
            assert (ids.dtype, ids.shape) == (np.dtype(np.int64), (length,))
            assert (mask.dtype, mask.shape) == (np.dtype(np.uint8), (length,))
            counts.append(int(mask.sum()))
            assert counts[-1] >= 1, f"{caption!r} has no token"
            assert mask.tolist() == [1] * counts[-1] + [0] * (length - counts[-1])
            if tokens.lost:
                assert tokens.cut_at is not None, "cut_at must say where a caption is cut"
                assert 0 < tokens.cut_at < len(caption)
        assert counts[-1] == length, "a long caption must fill the mask"
        assert counts[0] < length, "a short caption must not"


def picture(width: int, height: int, seed: int = 0) -> Picture:
    """Make a picture of soft colours and some noise, the same for the same seed."""
    random = np.random.default_rng(seed)
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    waves = [
        np.sin(random.uniform(1, 9) * across + random.uniform(1, 9) * down + random.uniform(0, 6))
        for _ in range(3)
    ]
    noise = random.normal(0, 8, (height, width, 3))
    return np.clip(np.stack(waves, axis=-1) * 100 + 128 + noise, 0, 255).astype(np.uint8)


def _require_shape(
    array: NDArray[Any], component: Component, width: int = 0, height: int = 0
) -> None:
    """Raise unless a component has this shape; of one that is trimmed, before that."""
    fits = dataclasses.replace(component, trim=False).fits(array.shape, width, height)
    assert fits, f"{width}x{height}: {array.shape}, not {component.shape}"


def _require_numbers(array: NDArray[Any], component: Component) -> None:
    """Raise unless a component can hold these values."""
    # NumPy has no bfloat16, which holds what float32 does.
    stored = np.dtype(np.float32 if component.dtype == BFLOAT16 else component.dtype)
    assert (array.dtype.kind == "f") is component.is_float, f"{array.dtype}, not {stored}"
    assert array.dtype.itemsize >= stored.itemsize, f"{array.dtype} is less than {stored}"
    held = array.astype(stored)
    assert np.isfinite(held).all(), "not finite as stored"
    assert component.is_float or np.array_equal(held, array), f"{stored} cannot hold it"


def _arrays(prepared: Tokens | NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return (prepared.ids, prepared.mask) if isinstance(prepared, Tokens) else (prepared,)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()
