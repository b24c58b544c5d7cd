"""What a build is asked for, and the encoders that it uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwright import encoders
from shardwright.building.from_shards import Again
from shardwright.deriving.recipe import choices, load
from shardwright.encoders.base import DTYPES, Encoder, Options, PictureWriter
from shardwright.engine import DONE, Done
from shardwright.engine.ray import Ray
from shardwright.recipes import Component, Recipe, RecipeFile
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage.urls import Location
from shardwright.store import provenance


@dataclass(frozen=True)
class Request:
    """What the user asked for, already checked."""

    inputs: Sequence[Location]
    output: Location
    file: RecipeFile
    recipe: Recipe  # complete
    made: Mapping[str, provenance.Entry]  # how the samples were made that are there already
    encoders: encoders.Choice
    loaded: dict[Any, Any]  # what encoders share
    devices: tuple[str, ...]
    dtypes: Mapping[str, str]  # component name -> precision
    models: Mapping[str, str]  # component name -> id or path
    captions: Location | None
    forget_captions: bool  # not to read the file of earlier builds
    settings: PackSettings
    given: Collection[str] | None  # what of them excludes, as far as given; None: of other shards
    way: str | None  # append or overwrite, where shards may be there already
    sha256: bool
    batch_size: int | None
    compile: bool
    ignore_space: bool
    dry_run: bool
    again: Again | None = None  # the shards that are built from, instead of inputs
    ray: Ray | None = None  # the cluster that the work is done on

    @property
    def make(self) -> tuple[Component, ...]:
        """Give the components that are made, and not copied."""
        return self.recipe.components if self.again is None else self.again.copying.make


@dataclass(frozen=True)
class Made:
    """The encoders of a run, and what their arrays depend on."""

    encoders: Mapping[Component, Encoder | PictureWriter]
    entries: dict[str, provenance.Entry]
    dtypes: Mapping[str, str | None]


def describe(device: str, requests: Iterator[Request]) -> Iterator[Made | Done]:
    """Do in a worker what ``load_encoders`` does: only there a GPU may be."""
    for request in requests:
        made = load_encoders(replace(request, devices=(device,)))
        chosen = {name: made.entries[name].settings.get("dtype") for name in made.dtypes}
        # The same for all workers, whatever each would choose.
        dtypes = {name: dtype if dtype in DTYPES else None for name, dtype in chosen.items()}
        yield Made({}, made.entries, dtypes)
        yield DONE


def load_encoders(request: Request) -> Made:
    """Load the encoders, which is cheap: a device loads the weights."""
    loaded: dict[Component, Encoder | PictureWriter] = {}
    copied = request.recipe.by_name.keys() - {component.name for component in request.make}
    entries = {name: entry for name, entry in request.made.items() if name in copied}
    dtypes, made_with = dict[str, str | None](), provenance.set_of(request.encoders)
    for component in request.make:
        if component.source == "elsewhere":
            what = "has no encoder, so build cannot make it"
            fix = "give it an encoder, or use shardwright derive and pack"
            raise request.file.error(component.name, "encoder", what, fix)
        dtype = request.dtypes.get(component.name)
        if dtype is None and component.name in request.made:
            known = request.made[component.name].settings
            if known.get("encoders") == "pretrained" and known.get("dtype") in DTYPES:
                dtype = known["dtype"]
        dtypes[component.name] = dtype
        options = Options(request.devices[0], dtype)
        loaded[component], told = load(
            request.encoders, component, options, request.loaded, request.file, request.output
        )
        settings = told | choices(component, request.recipe, made_with)
        settings |= request.again.seen(component) if request.again else {}
        model = request.models.get(component.name)
        entries[component.name] = provenance.entry_of(component, settings, model)
    return Made(loaded, entries, dtypes)
