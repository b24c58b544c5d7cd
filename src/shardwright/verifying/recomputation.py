"""How the samples of shards were made, as their manifest records it; and the encoders for it.

Whether a member holds what was recomputed: to the bit, or within the rounding of a model.

What has no model is compared to the bit: sketches, masks, integers. An array of a model may differ,
because a model rounds differently in another batch, on another device, or with another number of
threads. It is equal if no number differs by more than ``STEPS`` roundings of the recorded ``dtype``
(float32, tf32 or bfloat16) and one of the stored dtype, each of the largest number in the array. On
a CPU in float32, an autoencoder of random weights gave up to 33 with other batches and threads.

A picture is equal if its bytes are, or if no pixel differs by more than two of 256 levels: another
version of a library may compress it in another way.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from shardwright import encoders
from shardwright.deriving.encoding import DeviceEncoder, Encoding
from shardwright.deriving.recipe import load, view_of
from shardwright.deriving.results import Results
from shardwright.encoders.base import DTYPES, Encoder, Options, PictureWriter
from shardwright.engine.local import cores
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.recipes import BFLOAT16, Component, Recipe, RecipeFile, Selection
from shardwright.recipes.compare import changes
from shardwright.shards.format import decode
from shardwright.shards.format.decode import BadMemberError
from shardwright.shards.format.empty import shape_of
from shardwright.shards.format.manifest import Manifest, Run
from shardwright.storage.urls import Location
from shardwright.store import provenance
from shardwright.store.arrays import Array, pieces, values
from shardwright.store.npy import BadArrayError
from shardwright.store.provenance import Entry, Settings

# The settings that are not the encoder's; what a component sees follows from them.
_OURS = ("encoders", "colour", "decode", "fit", "crop", "buckets")
STEPS = 64  # roundings that may add up in a model
_STEP = {"float32": 2.0**-23, "tf32": 2.0**-10, "bfloat16": 2.0**-8}  # one of them, of 1
_LEVELS = 2  # of 256, in a picture
_FORMATS = ("JPEG", "PNG", "WEBP")
_RECIPE = "give --recipe FILE that names the model they were made with, or leave out --against"


@dataclass(frozen=True)
class Made:
    """How the samples of a run were made."""

    recipe: Recipe
    entries: Mapping[str, Entry]  # of the components that can be recomputed
    unknown: Mapping[str, str]  # why others cannot be, by component


def made_by(done: Manifest, run: Run) -> Made:
    """Read how a run of a manifest made its samples."""
    recipe, known = done.samples_of(), provenance.entries_in(run.provenance)
    entries, unknown = {}, {}
    for component in recipe.components:
        entry = known.get(component.name)
        if why := _obstacle(entry):
            unknown[component.name] = why
        elif entry is not None:
            entries[component.name] = entry
    return Made(recipe, entries, unknown)


def _obstacle(entry: Entry | None) -> str | None:
    """Say why a component cannot be recomputed from images."""
    if entry is None:
        return "the manifest does not say how it was made"
    if entry.settings.get("encoders") not in encoders.SETS:
        return "it was made by an encoder that no recipe names"
    if entry.unknown_arrays:
        return "some of its arrays were made elsewhere"
    if "from" in entry.settings:
        return "it was made from the pictures of other shards"
    return None


class Remaker:
    """The encoders of a ``Made``, and what they see of a picture."""

    def __init__(
        self, made: Made, file: RecipeFile, device: str, shared: dict[Any, Any], folder: Location
    ) -> None:
        """Load the encoders, which is cheap; raise if they are not those of the shards."""
        self.settings = {name: entry.settings for name, entry in made.entries.items()}
        self._loaded: dict[Component, Encoder | PictureWriter] = {}
        used, now = dict(made.recipe.by_name), dict[str, Settings]()
        for name, entry in made.entries.items():
            named, component = _located(used[name], entry, file)
            dtype = entry.settings.get("dtype")
            options = Options(device, dtype if dtype in DTYPES else None)
            choice = entry.settings["encoders"]
            try:
                encoder, told = load(choice, component, options, shared, named, folder)
            except InputMissingError as error:
                raise InputMissingError(error.what, path=error.path, fix=_RECIPE) from error
            used[name], self._loaded[component] = component, encoder
            now[name] = told | {k: v for k, v in entry.settings.items() if k in _OURS}
        if listed := provenance.differences(self.settings, now)[1]:
            what = f"its samples cannot be recomputed: another model is here ({listed})"
            raise UsageError(what, path=folder, fix=_RECIPE)
        # What is in the shards was selected before.
        self.recipe = replace(made.recipe, components=tuple(used.values()), selection=Selection())
        self.components = tuple(self._loaded)
        self._views = {
            component: view_of(component, self.recipe, self.settings[component.name])
            for component in self.components
            if component.source == "image"
        }
        self.following = {c: view for c, view in self._views.items() if c.follows_picture}
        self.results = Results(self.recipe, self.following, keeps=False)

    def maker(self, device: str, progress: Progress) -> DeviceEncoder:
        """Load the models."""
        making = Encoding(
            recipe=self.recipe,
            encoders=encoders.SETS[0],
            components=self.components,
            dtypes={},
            views=self._views,
            work=tuple(component for component in self.components if component.is_array),
            empties=(),
            batch_size=None,
            compile=False,
            cores=cores(),
            loaded=self._loaded,
        )
        return DeviceEncoder(making, device, progress)


def _located(component: Component, entry: Entry, file: RecipeFile) -> tuple[RecipeFile, Component]:
    """Give a component with the place of its model; and the file that names its code, if one does.

    That is the file of the user, if it has this component, because models move. Of a model on the
    hub it is the revision that was used.
    """
    named, model = replace(file, origin=None), entry.model or component.settings.get("model")
    given = file.recipe.by_name.get(component.name) if file.origin is not None else None
    if given is not None and not any(changes(component, given)):
        named, model = file, given.settings.get("model", model)
        component = replace(given, dtype=component.dtype, shape=component.shape)
    was = entry.settings
    if was.get("revision") and isinstance(model, str) and model.split("@")[0] == was.get("model"):
        model = f"{was['model']}@{was['revision']}"
    if model is None or entry.settings["encoders"] != "pretrained":
        return named, component
    return named, replace(component, settings={**component.settings, "model": model})


def difference(
    component: Component, member: bytes, made: Array | bytes, settings: Settings
) -> str | None:
    """Say in what a member differs from what was recomputed; None if it is equal."""
    if member == b"".join(pieces(made)):
        return None
    if isinstance(made, bytes):
        return _of_pictures(component, member, made)
    try:
        stored = decode.array(memoryview(member))
    except BadMemberError as error:
        return f"is no array ({error})"
    if (stored.dtype, stored.shape) != (made.dtype, made.shape):
        return f"is {stored.dtype} {stored.shape}, not {made.dtype} {made.shape}"
    there, now = (values(each, component).astype(np.float64) for each in (stored, made))
    largest = float(np.abs(there - now).max())
    exact = settings.get("encoders") == "sketch" or not component.is_float
    if exact:  # of equal numbers, other bits are a difference too: those of 0 and -0
        return f"differs by up to {largest:.3g}"
    dtype = str(settings.get("dtype"))
    dtype = dtype if dtype in _STEP else "float32"  # an encoder of the user's may not say it
    allowed = _allowed(component, float(np.abs(now).max()), dtype)
    if largest <= allowed:
        return None
    return f"differs by up to {largest:.3g}, {largest / allowed:.3g} times the rounding of {dtype}"


def _allowed(component: Component, largest: float, dtype: str) -> float:
    """Give the difference that rounding can make in an array, by its largest number."""
    kind = np.finfo(np.float32 if component.dtype == BFLOAT16 else component.dtype)
    step = 2.0**-7 if component.dtype == BFLOAT16 else float(kind.eps)
    # Below the smallest normal number, numbers are stored with fewer bits.
    return STEPS * _STEP[dtype] * largest + step * max(largest, float(kind.smallest_normal))


def _of_pictures(component: Component, member: bytes, made: bytes) -> str | None:
    try:
        # The size in the head limits what is decoded: it must be that of our own picture.
        sizes = [shape_of(each, component) for each in (member, made)]
        if sizes[0] != sizes[1]:
            height, width, _ = sizes[0]
            return f"is {width}x{height}, not {sizes[1][1]}x{sizes[1][0]}"
        there, now = _pixels(member), _pixels(made)
    except BadArrayError as error:
        return f"is no picture of the recipe ({error.reason.replace('_', ' ')})"
    except Exception as error:  # decoders may raise anything
        return f"cannot be decoded ({error})"
    largest = int(np.abs(there - now).max())
    return f"differs by up to {largest} of 256 levels" if largest > _LEVELS else None


def _pixels(data: bytes) -> Array:
    with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        warnings.simplefilter("ignore")  # of metadata
        return np.asarray(image.convert("RGB")).astype(np.int16)
