"""The recipe that a run follows: that of the file, else of the store, with the flags over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright import encoders
from shardwright.encoders.base import RecipeError
from shardwright.errors import UsageError
from shardwright.interrupts import at_once
from shardwright.recipes import Component, Recipe, RecipeFile
from shardwright.recipes.compare import changes
from shardwright.recipes.values import usual_dtype
from shardwright.store import provenance


def followed(
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
    for key in ("max_upscale", "max_crop"):
        if recipe.fit == "original" and getattr(recipe.selection, key) is not None:
            what = f'[images] {key}: has no effect with fit = "original"'
            path = file.origins.get(f"images.{key}", file.origin)
            raise UsageError(what, path=path, fix='add fit = "bucket", or leave it out')
    if recipe.selection.max_tokens_lost is not None and not recipe.captions:
        what = "[images] max_tokens_lost: has no effect, because no component reads a caption"
        path = file.origins.get("images.max_tokens_lost", file.origin)
        raise UsageError(what, path=path, fix="leave it out")
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
