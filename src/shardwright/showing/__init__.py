"""The recipe in force: where each value comes from, and a file to start from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright import recipes
from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.recipes.file import NAME, shipped
from shardwright.summary import Summary
from shardwright.validate import as_text, place, require_switches

if TYPE_CHECKING:
    from shardwright.recipes import Component, RecipeFile

__all__ = ["RecipeComponent", "RecipeSummary", "ShippedRecipe", "recipe"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RecipeComponent:
    """One component of a recipe."""

    name: str
    member: str  # the end of its name in a shard
    dtype: str | None  # None until the model is there, as with the shape
    shape: list[int | str] | None  # for example [16, "height/8", "width/8"]
    encoder: str | None  # None if another tool makes it
    model: str | None


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that is part of Shardwright."""

    about: str
    components: list[str]


@dataclass
class RecipeSummary(Summary):
    """The recipe in force, or the shipped ones."""

    origin: str = ""  # a file, a shipped recipe or a store
    toml: str = ""  # all of it, with the origin of each value
    components: list[RecipeComponent] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    written: str | None = None  # the file to start from
    shipped: dict[str, ShippedRecipe] = field(default_factory=dict)  # if they are listed


@entry
def recipe(
    recipe: StrPath | None = None,
    *,
    list: bool = False,  # noqa: A002 - as the flag
    init: StrPath | None = None,
) -> RecipeSummary:
    """Show the recipe in force, list the shipped ones, or write a file to start from.

    Arguments are named like the flags of ``shardwright recipe``. ``recipe`` is a file or the name
    of a shipped recipe; without it, the recipe in force is ``shardwright.toml`` of the working
    folder, else that of the store, else ``prx``. ``init`` is the file to write.
    """
    from shardwright.recipes import build, toml  # here, to keep --help fast

    require_switches(list=list)
    if list:
        return RecipeSummary(shipped={name: _shipped(name) for name in shipped()})
    given = None if recipe is None else as_text("recipe", recipe, "a file or a name")
    found, tables, origins = recipes.find(given), None, None
    store = found.paths["store"]
    origin = found.origin or recipes.DEFAULT
    ...
