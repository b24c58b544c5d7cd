"""Finding the recipe in force, and writing it."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright import recipes
from shardwright.errors import UsageError
from shardwright.recipes import Component, build, file, toml
from shardwright.recipes.compare import dtype_text, shape_text
from shardwright.showing import RecipeComponent, RecipeSummary, ShippedRecipe
from shardwright.storage import files
from shardwright.store.store import recorded


def shipped() -> dict[str, ShippedRecipe]:
    """Describe the shipped recipes by the first sentence of their files."""
    found = {}
    for name in file.shipped():
        comment = file.shipped_path(name).read_text().partition("\n\n")[0].replace("\n# ", " ")
        about = comment.removeprefix("# ").partition(". ")[0].removesuffix(".")
        found[name] = ShippedRecipe(about, list(file.read_shipped(name).recipe.by_name))
    return found


def show(given: str | None, init: Path | None) -> RecipeSummary:
    """Show the recipe of a name or file, else the one in force; write it if asked to."""
    found = recipes.find(given)
    recipe, tables, origins = found.recipe, found.tables, found.origins
    origin = found.origin or file.DEFAULT
    if found.origin is None and (used := recorded(found.paths["store"])) is not None:
        recipe, tables, origin = used, build.tables_of(used), str(found.paths["store"])
        origins = {build.place(name, key): origin for name in tables for key in tables[name]}
    full = toml.complete(tables)
    if init is not None:
        _write(init, toml.starting(full, origin))
    return RecipeSummary(
        origin=origin,
        toml=toml.with_origins(full, origins),
        components=[_row(component) for component in recipe.components],
        buckets=[str(bucket) for bucket in recipe.buckets],
        written=None if init is None else str(init),
    )


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
