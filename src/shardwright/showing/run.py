"""Finding the recipe in force, and writing it."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright import recipes, regular
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component, RecipeFile, build, file, toml
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.showing import RecipeComponent, RecipeSummary, ShippedRecipe
from shardwright.storage import files
from shardwright.store.store import recorded


def shipped() -> dict[str, ShippedRecipe]:
    """Describe the shipped recipes by the first sentence of their files."""
    found = {}
    for name in file.shipped():
        text = regular.read(file.shipped_path(name)).decode()
        comment = text.partition("\n\n")[0].replace("\n# ", " ")
        about = comment.removeprefix("# ").partition(". ")[0].removesuffix(".")
        found[name] = ShippedRecipe(about, list(file.read_shipped(name).recipe.by_name))
    return found


def show(given: str | None, store: Path | None, init: Path | None) -> RecipeSummary:
    """Show the recipe of a file, a name or a store, else that in force; write it if asked to."""
    found = _in_force(given) if store is None else _of_store(store)
    if found is None:
        fix = "give the folder of a store that shardwright derive has written to"
        raise InputMissingError("has no recipe", path=store, fix=fix)
    recipe, origin, full = found.recipe, found.origin or file.DEFAULT, toml.complete(found.tables)
    if init is not None:
        _write(init, toml.starting(full, origin))
    return RecipeSummary(
        origin=origin,
        toml=toml.with_origins(full, found.origins),
        components=[_row(component) for component in recipe.components],
        buckets=[str(bucket) for bucket in recipe.buckets],
        written=None if init is None else str(init),
    )


def _in_force(given: str | None) -> RecipeFile:
    found = recipes.find(given)
    return (_of_store(Path(found.paths["store"])) if found.origin is None else None) or found


def _of_store(folder: Path) -> RecipeFile | None:
    """Give the recipe of a store as a file would; None if no run of ours has written to it."""
    recipe = recorded(folder)
    if recipe is None:
        return None
    origin, tables = str(folder), build.tables_of(recipe)
    origins = {build.place(name, key): origin for name in tables for key in tables[name]}
    return RecipeFile(recipe, {}, origin, origins, tables)


def _write(path: Path, text: str) -> None:
    if str(path) in file.shipped():
        fix = f"write shardwright recipe {path} --init to start from it"
        raise UsageError("is the name of a shipped recipe, not a file", path=path, fix=fix)
    if os.path.lexists(path):
        fix = "give another file to --init, or remove this one"
        raise UsageError("exists already", path=path, fix=fix)
    files.write(path, text.encode())


def _row(component: Component) -> RecipeComponent:
    return RecipeComponent(
        name=component.name,
        member=component.suffix,
        dtype=dtype_text(component) or None,
        shape=list(shape_text(component)) or None,
        trim=component.trim,
        encoder=component.encoder,
        model=component.settings.get("model"),
    )
