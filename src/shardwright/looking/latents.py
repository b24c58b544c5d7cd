"""Latents as pictures: by their own inverse, by a linear map to colours, or by the real decoder.

Settings may come from a stranger's shards: nothing that they name is loaded, unless the user asks
for the decoder. ``heat`` shows any other array.
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
_LEAST_PAIRS = 4  # so that one can be held out
_HELD_OUT = 4  # every fourth picture
_PLACES = 2048  # of a picture that a map is fitted on
_NUMBERS = 1 << 23  # that it is fitted on in all
_CHANNELS = 512  # that it uses; of more, some at random
_LEAST_CHANNELS = 16  # of many
_PLACES_PER_CHANNEL = 8  # with fewer, it would learn the noise
_RIDGE = 1e-6  # of the variance of a channel: enough for channels that depend on each other

_LARGEST_BLOCK = 64 * 64  # pixels; a stranger's recipe may say anything
_WORK = 1 << 28  # pixels by channels
_LARGEST_PICTURE = 1 << 24  # pixels
_LARGEST_MAP = 1 << 20  # pixels
_LARGEST_VALUE = 1e6

_LUMA = np.array([0.299, 0.587, 0.114])
_SIDE = 64  # pixels at which a preview is compared with its picture

_HEAT_SIDE = 128
_MOST_HEAT = 1 << 22  # numbers that are read for it
_LARGEST_HEAT = 1e30
_STOPS = np.array(  # from dark to light, so that it can be read without colours
    [(22, 12, 58), (62, 46, 134), (36, 108, 156), (52, 164, 130), (168, 208, 84), (252, 240, 164)]
)
_NOT_FINITE = (255, 0, 128)
_NOTHING = (128, 128, 128)


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
    if settings.get("encoder") == "sketch":
        small = component.map.down * component.map.across <= _LARGEST_BLOCK
        if small and (component.is_float or component.dtype[1] in "iu"):  # a bool is only a sign
            return Preview("sketch, decoded", component, lambda v: _sketched(component, v))
    elif decode and _has_decoder(component):
        return _decoded(component, settings)
    if (factors := rgb.published(_count(component) or 0, settings)) is not None:
        return _linear("linear map of FLUX.1", component, factors)
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


def heat(array: Numbers, component: Component | None = None) -> Picture:
    """Show any array by a scale of colours: a vector as a grid, a map as the mean of its channels.

    The scale ends at the 1st and the 99th percentile. What is not finite has a colour of its own.
    Of very large arrays, some rows and columns all over are shown.
    """
    if array.dtype.kind not in "biuf" or not array.size:
        return np.full((1, 1, 3), _NOTHING, np.uint8)
    layers = _strided(_layers(array, component), _MOST_HEAT)
    layers = layers[:: math.ceil(layers.size / _MOST_HEAT)]
    values, finite = _finite(layers, _LARGEST_HEAT)
    # In a cell, the mean of what is finite; but one number that is not must not disappear.
    count: Numbers = _pooled(np.add.reduce(finite, axis=0, dtype=np.int64))
    means = _pooled(np.add.reduce(values, axis=0, dtype=np.float64)) / np.maximum(count, 1)
    marked = count < _pooled(np.full(finite.shape[1:], len(finite)))
    known = means[~marked]
    low, high = np.percentile(known, (1, 99)) if known.size else (0.0, 0.0)
    shade = (means - low) / (high - low) if high > low else np.full(means.shape, 0.5)
    steps = np.linspace(0, 1, len(_STOPS))
    colours = [np.interp(shade, steps, _STOPS[:, channel]) for channel in range(3)]
    picture = np.stack(colours, axis=-1).round().astype(np.uint8)
    picture[marked] = _NOT_FINITE
    if array.ndim == 1:
        picture.reshape(-1, 3)[array.size :] = _NOTHING
    return picture


# Sketched


def _sketched(component: Component, values: Floats) -> Picture:
    layout = component.map
    assert layout is not None
    channels = values.size // math.prod(values.shape[place] for place in layout.places)
    places = min(_WORK // channels, _LARGEST_PICTURE) // (layout.down * layout.across)
    maps = np.moveaxis(values, layout.places, (-2, -1))
    some = np.moveaxis(_strided(maps, places * channels), (-2, -1), layout.places)
    return sketch.decode(some, component)


# Decoded


def _has_decoder(component: Component) -> bool:
    """Whether a model of ours made it; an encoder of the user's own is never imported here."""
    kind = ENCODERS.get(component.encoder or "")
    return kind is not None and kind.module == "autoencoder"


def _decoded(component: Component, settings: Mapping[str, Any]) -> Preview:
    require(("torch", "diffusers"), "--decode needs", "leave --decode out")
    from shardwright.encoders.autoencoder import Decoder  # here, because it needs torch

    model = _model(component, settings)
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

    others = {key: settings[key] for key in decoder.identity if key in settings}
    same = all(decoder.identity[key] == value for key, value in others.items())
    note = "" if same else ", which is not the one that made them"
    return Preview(f"decoded by {decoder.identity['model']}{note}", component, make)


def _model(component: Component, settings: Mapping[str, Any]) -> str:
    """Name the model of the recipe, at the revision that made the latents if that is known."""
    model, revision = component.settings.get("model"), settings.get("revision")
    if not isinstance(model, str) or not model:
        what = f"--decode: the recipe names no model for {component.name}"
        raise UsageError(what, fix="leave --decode out")
    return f"{model}@{revision}" if settings.get("model") == model and revision else model


# A linear map


def _linear(
    label: str, component: Component, factors: rgb.Factors, used: NDArray[np.intp] | None = None
) -> Preview:
    def make(values: Floats) -> Picture:
        channels = _channels(values, component)
        channels = channels if used is None else channels[used]
        return factors.picture(_strided(channels, _LARGEST_MAP * len(channels)))

    return Preview(label, component, make)


def _fitted(component: Component, pairs: Pairs) -> Preview | None:
    """Fit a linear map by least squares; measure its error on pictures that are held out."""
    count = _count(component)
    if count is None:
        return None
    # At random, because channels may have an order, for example red, green, blue, red, ...
    used = np.random.default_rng(0).permutation(count)[:_CHANNELS]
    most = min(_PLACES, _NUMBERS // (len(used) * _MOST_PAIRS))
    some = (_row(component, pair, used, most) for pair in islice(pairs(), _MOST_PAIRS))
    rows = [row for row in some if row is not None]
    fitted = [row for number, row in enumerate(rows) if number % _HELD_OUT != _HELD_OUT - 1]
    enough = sum(len(colours) for _, colours in fitted) // _PLACES_PER_CHANNEL
    if len(rows) < _LEAST_PAIRS or enough < min(len(used), _LEAST_CHANNELS):
        return None
    used = used[:enough]
    known, seen = _joined(fitted, enough)
    if seen.std(axis=0).max() < 1 / 255:
        return None  # plain pictures: nothing to learn from
    channels, colours = _joined(rows[_HELD_OUT - 1 :: _HELD_OUT], enough)
    error = _error(_least_squares(known, seen).colours(channels), colours)
    plain = _error(seen.mean(axis=0), colours)
    label = (
        f"linear fit on {len(rows)} pictures, error {100 * error:.0f} % of the range, "
        f"{100 * plain:.0f} % for a plain colour"
    )
    return _linear(label, component, _least_squares(*_joined(rows, enough)), used)


def _row(component: Component, pair: Pair, used: NDArray[np.intp], most: int) -> _Row | None:
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


def _joined(rows: list[_Row], count: int) -> _Row:
    channels, colours = zip(*rows, strict=True)
    return np.concatenate([each[:, :count] for each in channels]), np.concatenate(colours)


def _least_squares(channels: NDArray[np.float64], colours: NDArray[np.float64]) -> rgb.Factors:
    middle, spread = channels.mean(axis=0), channels.std(axis=0)
    spread[spread <= 1e-9 * np.abs(middle)] = np.inf  # a constant channel has no weight
    spread[spread == 0] = np.inf
    unit = (channels - middle) / spread
    gram = unit.T @ unit / len(unit) + _RIDGE * np.eye(unit.shape[1])
    grey = colours.mean(axis=0)
    weights = np.linalg.solve(gram, unit.T @ (colours - grey) / len(unit)) / spread[:, None]
    return rgb.Factors(weights, grey - middle @ weights)


def _error(found: NDArray[np.float64], colours: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(found - colours).mean()))


# Arrays


def _count(component: Component) -> int | None:
    """Count the channels; None if their number is not fixed."""
    assert component.map is not None
    others = [axis for n, axis in enumerate(component.shape) if n not in component.map.places]
    lengths = [axis for axis in others if isinstance(axis, int)]
    return math.prod(lengths) if len(lengths) == len(others) else None


def _cleaned(latent: Numbers, component: Component) -> tuple[Floats, NDArray[np.bool_]]:
    """Give the values in a sane range, and at which places all of them were finite."""
    if not component.accepts(latent.shape) or latent.dtype.kind not in "biuf":
        what = f"{component.name}: an array of {latent.dtype} {latent.shape} is not a latent"
        raise DamageError(what, fix="verify the data")
    values, finite = _finite(latent, _LARGEST_VALUE)
    return values, np.logical_and.reduce(_channels(finite, component), axis=0)


def _finite(array: Numbers, largest: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Give floats of a sane range, zero where they were not finite, and where they were."""
    finite = np.isfinite(array)
    floats = array.astype(np.result_type(array.dtype, np.float32))
    return np.where(finite, floats, 0).clip(-largest, largest), finite


def _channels(array: Numbers, component: Component) -> Numbers:
    """Give an array as (channels, rows, columns)."""
    assert component.map is not None
    maps = np.moveaxis(array, component.map.places, (-2, -1))
    return maps.reshape(-1, *maps.shape[-2:])


def _strided(maps: Numbers, most: int) -> Numbers:
    """Leave out rows and columns, so that at most about so many numbers are left."""
    excess = maps.size / max(1, most)
    if excess <= 1:
        return maps
    maps = maps[..., :: math.ceil(max(math.sqrt(excess), excess / maps.shape[-1])), :]
    return maps[..., :: math.ceil(maps.size / max(1, most))]


def _layers(array: Numbers, component: Component | None) -> Numbers:
    """Give an array as maps (layers, rows, columns); a vector is filled up to a grid."""
    if array.ndim < 2:
        flat = array.reshape(-1)[:: math.ceil(array.size / _MOST_HEAT)]
        columns = math.ceil(math.sqrt(flat.size))
        rows = -(-flat.size // columns)
        return np.pad(flat, (0, rows * columns - flat.size), mode="edge").reshape(1, rows, columns)
    if component is not None and component.map is not None and component.accepts(array.shape):
        return _channels(array, component)
    return array.reshape(-1, *array.shape[-2:])


def _pooled(plane: Numbers) -> Numbers:
    """Add up the cells of a grid of at most so many rows and columns."""
    for axis, length in enumerate(plane.shape):
        if length > _HEAT_SIDE:
            starts = np.arange(_HEAT_SIDE) * length // _HEAT_SIDE
            plane = np.add.reduceat(plane, starts, axis=axis)
    return plane


def _resized(picture: Picture, width: int, height: int) -> Floats:
    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((width, height), Image.Resampling.BOX), np.float64)
