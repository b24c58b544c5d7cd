"""The recipe that a run follows, and what arrays depend on by it beside the weights of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright import encoders
from shardwright.deriving.views import View
from shardwright.encoders.base import Encoder, Options, PictureWriter, RecipeError
from shardwright.errors import UsageError
from shardwright.interrupts import at_once
from shardwright.recipes import SPECIFICATION, Component, Recipe, RecipeFile, Side
from shardwright.recipes.compare import changes
from shardwright.recipes.keys import ENCODERS
from shardwright.recipes.values import usual_dtype
from shardwright.store import provenance
from shardwright.store.provenance import FAST, FRACTIONS, SRGB, Settings


def effective_recipe(
    file: RecipeFile,
    start: Recipe | None,
    entries: Mapping[str, provenance.Entry],
    *,
    fit: str | None,
    decode: str | None,
    ids: str | None,
    models: Mapping[str, str],
    choice: encoders.Choice | None,
) -> tuple[Recipe, encoders.Choice, dict[Any, Any]]:
    """Give the complete recipe of the file, else that of a start, with the flags over it.

    Also the set of encoders, by default that of ``entries``; and what encoders share.
    """
    if choice is None:
        choice = _usual_set(entries)
    encoders.require_choice(choice)
    recipe = file.recipe if start is None or file.origin is not None else start
    recipe = recipe.override(fit=fit, decode=decode, models=models, ids=ids)
    _require_sense(recipe, file)
    known = start.by_name if start else {}
    loaded: dict[Any, Any] = {}
    components = (_known(c, known.get(c.name), choice, file, loaded) for c in recipe.components)
    return replace(recipe, components=tuple(components)), choice, loaded


def _usual_set(entries: Mapping[str, provenance.Entry]) -> str:
    """Give the set of encoders that made a store, if it was one set; else the first."""
    sets = {entry.settings.get("encoders") for entry in entries.values()}
    known = sets & set(encoders.SETS)
    return str(*known) if len(sets) == len(known) == 1 else encoders.SETS[0]


def _require_sense(recipe: Recipe, file: RecipeFile) -> None:
    """Raise if a limit of the selection, or the fit of a component, can have no effect."""
    unfit = ' with fit = "original"' if recipe.fit == "original" else ""
    unread = "" if recipe.captions else ", because no component reads a caption"
    add = 'add fit = "bucket", or leave it out'
    for key, why, fix in (
        ("max_upscale", unfit, add),
        ("max_crop", unfit, add),
        ("max_tokens_lost", unread, "leave it out"),
    ):
        if why and getattr(recipe.selection, key) is not None:
            path = file.origins.get(f"images.{key}", file.origin)
            raise UsageError(f"[images] {key}: has no effect{why}", path=path, fix=fix)
    for component in recipe.components:
        if recipe.fit == "original" and component.settings.get("fit") == "bucket":
            what = 'nothing is fitted to a bucket with [images] fit = "original"'
            fix = 'add fit = "bucket" to [images], or leave it out'
            raise file.error(component.name, "fit", what, fix)


def _known(
    component: Component,
    used: Component | None,
    choice: encoders.Choice,
    file: RecipeFile,
    loaded: dict[Any, Any],
) -> Component:
    """Complete a component whose file leaves its dtype or shape to the encoder."""
    if component.is_known:
        return component
    same_model = used is not None and used.settings.get("model") == component.settings.get("model")
    if used is not None and same_model and not any(changes(used, component)):
        return replace(component, dtype=used.dtype, shape=used.shape)
    shape, dtype = component.shape, component.dtype
    if not isinstance(choice, str) and component.name in choice:
        given = choice[component.name].component
        shape, dtype = shape or given.shape, dtype or given.dtype
    elif not shape:
        if choice == "sketch":
            fix = "add shape = [...] to the recipe, because a sketch has no model that knows it"
            raise file.error(component.name, "shape", "is missing", fix)
        with at_once():
            try:
                shape = encoders.shape_of(component, loaded)
            except RecipeError as error:
                raise file.error(*error.fault) from error
    return replace(component, shape=shape, dtype=dtype or usual_dtype(shape))


def choices(
    component: Component,
    recipe: Recipe,
    made_with: str,
    kept: Settings | None = None,
) -> Settings:
    """Give the settings that are not the encoder's: the user's, and the rules of pictures.

    ``made_with`` is the set of encoders, ``kept`` are the settings of arrays that are there and
    stay.
    """
    chosen: Settings = {"encoders": made_with}
    if component.source != "image":
        return chosen
    chosen["colour"] = SRGB
    if recipe.decode == FAST:
        chosen["decode"] = FAST
    fit = fit_of(component, recipe, kept)
    if fit is not None:
        chosen["fit"] = fit
    if fit == "bucket":
        chosen["crop"] = FRACTIONS
        if recipe.buckets != SPECIFICATION.buckets:
            chosen["buckets"] = [str(bucket) for bucket in recipe.buckets]
    return chosen


def view_of(component: Component, recipe: Recipe, chosen: Settings) -> View:
    """Give what a component sees of a picture, by its settings."""
    fitted = chosen.get("fit") == "bucket"
    divisors = {axis.of: axis.divisor for axis in component.shape if isinstance(axis, Side)}
    return View(
        fit=chosen.get("fit", "original"),
        decode=chosen.get("decode"),
        divisors=(1, 1) if fitted else (divisors.get("width", 1), divisors.get("height", 1)),
        buckets=recipe.buckets if fitted else (),
        levels=recipe.levels if fitted else (),
        name=component.name,
    )


def load(
    choice: encoders.Choice,
    component: Component,
    options: Options,
    shared: dict[Any, Any],
    file: RecipeFile,
    data: object,
) -> tuple[Encoder | PictureWriter, Settings]:
    """Load the encoder of a component, and ask it what its arrays depend on.

    Refuse code that only ``data`` names: data must not decide what runs.
    """
    own = component.encoder is not None and component.encoder not in ENCODERS
    if own and choice == "pretrained" and file.origin is None:
        what = f"{component.name}: its encoder {component.encoder} is named only by the data"
        fix = "give --recipe FILE that names it, because code named in data is never run"
        raise UsageError(what, path=data, fix=fix)
    try:
        with at_once():
            encoder = encoders.load(choice, component, options, shared)
            return encoder, _described(encoder)
    except RecipeError as error:
        raise file.error(*error.fault) from error


def _described(encoder: Encoder | PictureWriter) -> Settings:
    """Ask an encoder what its arrays depend on, as JSON gives it back."""
    found: object = encoder.describe()
    try:
        if isinstance(found, dict):
            return provenance.plain(found)
    except (TypeError, ValueError, OverflowError):  # something that JSON cannot hold
        pass
    what = f"{encoder.component.name}: describe() of the encoder gave {found!r}"
    raise UsageError(what, fix="give a dict that JSON can hold")


def fit_of(component: Component, recipe: Recipe, kept: Settings | None) -> str | None:
    """Give the fit of a component that is made from pictures; None if it sees complete ones.

    Where its shape does not follow the picture and its recipe says nothing, arrays that are
    ``kept`` go on as they are, and others show what latents show.
    """
    if component.follows_picture:
        return recipe.fit
    fit = component.settings.get("fit") or ("bucket" if kept is None else kept.get("fit"))
    return "bucket" if fit == recipe.fit == "bucket" else None
