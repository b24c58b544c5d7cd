"""The recipe that a run follows: of the file, else of the store, with the flags over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright import encoders
from shardwright.encoders.base import RecipeError
from shardwright.interrupts import at_once
from shardwright.recipes import Component, Recipe, RecipeFile
from shardwright.recipes.compare import changes
from shardwright.store import provenance
from shardwright.store.store import Store, read_recipe


def wanted(
    file: RecipeFile,
    used: Recipe | None,
    fit: str | None,
    models: Mapping[str, str],
    choice: encoders.Choice,
) -> Recipe:
    """Give the complete recipe of a run; ``used`` is that of the store."""
    start = file.recipe if used is None or file.origin is not None else used
    recipe = start.override(fit=fit, models=models)
    known = used.by_name if used else {}
    components = (_known(c, known.get(c.name), choice, file) for c in recipe.components)
    return replace(recipe, components=tuple(components))


def _known(
    component: Component, used: Component | None, choice: encoders.Choice, file: RecipeFile
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
                shape = encoders.shape_of(component, {})
            except RecipeError as error:
                raise file.error(*error.fault) from error
    return replace(component, shape=shape, dtype=dtype or ("<f4" if len(shape) == 1 else "<f2"))


def started_from(store: Store, recompute: bool) -> tuple[Recipe | None, str]:
    """Give the recipe and the set of encoders with which a store, or its recompute, was begun."""
    begun = read_recipe(store.next.folder) if recompute else None
    entries = provenance.readable((store.next if begun else store).folder)
    sets = {entry.settings.get("encoders") for entry in entries.values()}
    known = sets & set(encoders.SETS)
    return begun, str(*known) if len(sets) == len(known) == 1 else encoders.SETS[0]
