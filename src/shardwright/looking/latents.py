"""Latents as pictures: by their own inverse, by a linear map to colours, or by the real decoder.

Settings may come from a stranger's shards: nothing that they name is loaded, unless the user asks
for the decoder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.encoders import rgb, sketch
from shardwright.encoders.base import Options, Picture
from shardwright.encoders.packages import require
from shardwright.errors import DamageError, InputMissingError, ShardwrightError, UsageError
from shardwright.recipes import Component
from shardwright.recipes.keys import ENCODERS

Numbers = NDArray[Any]
Floats = NDArray[np.floating[Any]]
Pair = tuple[Numbers, Picture]  # the values of a latent, and the pixels that it shows
Pairs = Callable[[], Iterable[Pair]]
_Row = tuple[NDArray[np.float64], NDArray[np.float64]]  # channels and colours of some places

_MOST_PAIRS = 64
_LEAST_PAIRS = 4
_PLACES = 2048  # of a picture that a map is fitted on
_NUMBERS = 1 << 23  # that it is fitted on in all
_CHANNELS = 512  # that it uses; of more, some at random
_LEAST_CHANNELS = 16  # of many
_PLACES_PER_CHANNEL = 8  # with fewer, it would learn the noise

_LARGEST_BLOCK = 64 * 64  # pixels; a stranger's recipe may say anything
_LARGEST_PICTURE = 1 << 22  # pixels
_LARGEST_VALUE = 1e6

_LUMA = np.array([0.299, 0.587, 0.114])
_SIDE = 64  # pixels at which a preview is compared with its picture
_NOT_FINITE = (255, 0, 128)


@dataclass(frozen=True)
class Preview:
    """A way to show the latents of a component."""

    label: str  # how the picture is made
    component: Component
    make: Callable[[Floats], Picture]  # from finite values

    def picture(self, latent: Numbers) -> Picture:
        """Show a latent, at any size; places that are not finite have a colour of their own."""
        values, finite = _cleaned(latent, self.component)
        picture = self.make(values)
        if not finite.all():
            rows, columns = (
                np.arange(length) * places // length
                for length, places in zip(picture.shape[:2], finite.shape, strict=True)
            )
            picture[~finite[np.ix_(rows, columns)]] = _NOT_FINITE
        return picture


def choose(
    component: Component, settings: Mapping[str, Any], pairs: Pairs, *, decode: bool = False
) -> Preview | None:
    """Choose how to show the latents of a component; None if there is no way.

    ``settings`` are those of its provenance, if they are known. ``pairs`` is only called if colours
    have to be fitted. With ``decode``, raises if the model is not at hand.
    """
    if component.map is None or not component.is_known:
        return None
    kind = ENCODERS.get(component.encoder or "")  # an encoder of the user's is never imported here
    if settings.get("encoder") == "sketch":
        small = component.map.down * component.map.across <= _LARGEST_BLOCK
        if small and (component.is_float or component.dtype[1] in "iu"):  # a bool is only a sign
            return Preview("sketch, decoded", component, lambda v: sketch.decode(v, component))
    elif decode and kind is not None and kind.module == "autoencoder":
        return _decoded(component, settings)
    count = _count(component) or 0
    if (factors := rgb.published(count, settings)) is not None:
        return _linear("linear map of FLUX.1", component, factors, np.arange(count))
    return _fitted(component, pairs)


class Agreement(NamedTuple):
    """How previews correlate with pictures, by luminance."""

    own: float  # with their own
    others: float  # with the picture of another; 0 if there is none


def agreement(preview: Preview, pairs: Iterable[Pair]) -> Agreement | None:
    """Correlate previews with their pictures, and with those of others; None if all are plain.

    A low value means that the latents are not of these pictures, or of another model.
    """
    shown, pictures = [], []
    for latent, picture in pairs:
        with suppress(ShardwrightError):
            shown.append(preview.picture(latent))
            pictures.append(picture)
    own = _correlation(shown, pictures)
    if own is None:
        return None
    others = _correlation(shown, [*pictures[1:], *pictures[:1]]) if len(pictures) > 1 else 0.0
    return Agreement(own, others or 0.0)


def _correlation(shown: list[Picture], pictures: list[Picture]) -> float | None:
    both = []
    for made, picture in zip(shown, pictures, strict=True):
        rows, columns = np.minimum(made.shape[:2], picture.shape[:2]).clip(max=_SIDE).tolist()
        lumas = (_resized(each, columns, rows) @ _LUMA for each in (made, picture))
        both.append(np.stack([luma.ravel() for luma in lumas]))
    if not both:
        return None
    joined = np.concatenate(both, axis=1)
    if joined.std(axis=1).min() < 1e-6:
        return None
    return float(np.corrcoef(joined)[0, 1])


# Decoded


def _decoded(component: Component, settings: Mapping[str, Any]) -> Preview:
    require(("torch", "diffusers"), "--decode needs", "leave --decode out")
    from shardwright.encoders.autoencoder import Decoder  # here, because it needs torch

    model, revision = component.settings.get("model"), settings.get("revision")
    if not isinstance(model, str) or not model:
        what = f"--decode: the recipe names no model for {component.name}"
        raise UsageError(what, fix="leave --decode out")
    if settings.get("model") == model and revision:  # the one that made the latents
        model = f"{model}@{revision}"
    subfolder = component.settings.get("subfolder", "")
    if not isinstance(subfolder, str) or ".." in subfolder.split("/"):
        subfolder = ""
    exact = {"model": model, "subfolder": subfolder}
    try:
        decoder = Decoder.load(dataclasses.replace(component, settings=exact), Options(), {})
    except InputMissingError as error:
        before = (error.fix or "").partition("give a folder")[0]  # there is no flag for it here
        fix = f"{before}leave --decode out"
        raise InputMissingError(error.what, path=error.path, fix=fix) from error
    lock = Lock()

    def make(values: Floats) -> Picture:
        with lock:  # a large picture takes gigabytes
            try:
                return decoder.decode(values)
            except MemoryError as error:
                what = f"no memory to decode a latent of {values.shape}"
                raise ShardwrightError(what, fix="leave --decode out") from error

    same = all(settings.get(key, value) == value for key, value in decoder.identity.items())
    note = "" if same else ", which is not the one that made them"
    return Preview(f"decoded by {decoder.identity['model']}{note}", component, make)


# A linear map


def _linear(
    label: str, component: Component, factors: rgb.Factors, used: NDArray[np.int64]
) -> Preview:
    def make(values: Floats) -> Picture:
        return factors.picture(_channels(values, component)[used])

    return Preview(label, component, make)


def _fitted(component: Component, pairs: Pairs) -> Preview | None:
    """Fit a linear map by least squares."""
    count = _count(component)
    if count is None:
        return None
    # At random, because channels may have an order, for example red, green, blue, red, ...
    used = np.random.default_rng(0).permutation(count)[:_CHANNELS]
    most = min(_PLACES, _NUMBERS // (len(used) * _MOST_PAIRS))
    some = (_row(component, pair, used, most) for pair in islice(pairs(), _MOST_PAIRS))
    rows = [row for row in some if row is not None]
    enough = sum(len(colours) for _, colours in rows) // _PLACES_PER_CHANNEL
    if len(rows) < _LEAST_PAIRS or enough < min(len(used), _LEAST_CHANNELS):
        return None
    channels, colours = (np.concatenate(column) for column in zip(*rows, strict=True))
    if colours.std(axis=0).max() < 1 / 255:
        return None  # plain pictures: nothing to learn from
    factors = _least_squares(channels[:, :enough], colours)
    return _linear(f"linear fit on {len(rows)} pictures", component, factors, used[:enough])


def _row(component: Component, pair: Pair, used: NDArray[np.int64], most: int) -> _Row | None:
    """Give the channels and the colours of some places of a picture; None if there are none."""
    latent, picture = pair
    try:
        values, finite = _cleaned(latent, component)
    except DamageError:
        return None
    channels = _channels(values, component)[used]
    rows, columns = finite.shape
    colours = _resized(picture, columns, rows).reshape(-1, 3) / 255
    places = np.flatnonzero(finite)
    places = places[:: max(1, -(-len(places) // most))]
    if not len(places):
        return None
    return channels.reshape(len(channels), -1).T[places].astype(np.float64), colours[places]


def _least_squares(channels: NDArray[np.float64], colours: NDArray[np.float64]) -> rgb.Factors:
    middle, grey = channels.mean(axis=0), colours.mean(axis=0)
    weights = np.linalg.lstsq(channels - middle, colours - grey, rcond=1e-6)[0]
    return rgb.Factors(weights, grey - middle @ weights)


# Arrays


def _count(component: Component) -> int | None:
    """Count the channels; None if their number is not fixed."""
    assert component.map is not None
    others = [axis for n, axis in enumerate(component.shape) if n not in component.map.places]
    lengths = [axis for axis in others if isinstance(axis, int)]
    return math.prod(lengths) if len(lengths) == len(others) else None


def _cleaned(latent: Numbers, component: Component) -> tuple[Floats, NDArray[np.bool_]]:
    """Give the values in a sane range, and at which places all of them were finite.

    Of a very large latent, some rows and columns all over are left.
    """
    if not component.accepts(latent.shape) or latent.dtype.kind not in "biuf":
        what = f"{component.name}: an array of {latent.dtype} {latent.shape} is not a latent"
        raise DamageError(what, fix="verify the data")
    assert component.map is not None
    maps = np.moveaxis(latent, component.map.places, (-2, -1))
    most = max(1, _LARGEST_PICTURE // (component.map.down * component.map.across))
    excess = math.prod(maps.shape[-2:]) / most
    if excess > 1:
        maps = maps[..., :: math.ceil(max(math.sqrt(excess), excess / maps.shape[-1])), :]
        maps = maps[..., :: math.ceil(math.prod(maps.shape[-2:]) / most)]
    some = np.moveaxis(maps, (-2, -1), component.map.places)
    finite = np.isfinite(some)
    floats = some.astype(np.result_type(some.dtype, np.float32))
    values = np.where(finite, floats, 0).clip(-_LARGEST_VALUE, _LARGEST_VALUE)
    return values, np.logical_and.reduce(_channels(finite, component), axis=0)


def _channels(array: Numbers, component: Component) -> Numbers:
    """Give an array as (channels, rows, columns)."""
    assert component.map is not None
    maps = np.moveaxis(array, component.map.places, (-2, -1))
    return maps.reshape(-1, *maps.shape[-2:])


def _resized(picture: Picture, width: int, height: int) -> Floats:
    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((width, height), Image.Resampling.BOX), np.float64)
