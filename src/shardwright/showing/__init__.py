"""The recipe in force: where each of its values comes from, and a file to start from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.summary import Summary
from shardwright.validate import as_text, place_or_none

__all__ = ["RecipeComponent", "RecipeSummary", "ShippedRecipe", "recipe"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RecipeComponent:
    """One component of a recipe."""

    name: str
    member: str  # the end of its name in a shard
    dtype: str | None  # None until the model is there; so is the shape
    shape: list[int | str] | None  # for example [16, "height/8", "width/8"]
    trim: bool  # whether the first axis is only as long as the caption
    encoder: str | None  # None if another tool makes it
    model: str | None


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that is part of Shardwright."""

    about: str
    components: list[str]


@dataclass
class RecipeSummary(Summary):
    """The recipe in force, or the shipped ones if they are to be listed."""

    origin: str = ""  # a file, a shipped recipe or a store
    toml: str = ""  # all of it, with the origin of each value
    components: list[RecipeComponent] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    written: str | None = None  # the new file
    shipped: dict[str, ShippedRecipe] = field(default_factory=dict)


@entry
def recipe(
    recipe: StrPath | None = None,
    *,
    derived_dir: StrPath | None = None,
    list: bool = False,  # noqa: A002 - named like the flag
    init: StrPath | None = None,
) -> RecipeSummary:
    """Show the recipe in force, list the shipped ones, or write a file to start from.

    Arguments are named like the flags of ``shardwright recipe``. ``recipe`` is a file or the name
    of a shipped recipe; ``derived_dir`` is a store, whose recipe is shown. Without them,
    ``shardwright.toml`` of the working folder is in force, else the recipe of the store, else
    ``prx``. ``init`` is the file to write; it must not exist.
    """
    from shardwright.showing import recipe_text  # here, to keep --help fast

    if list:
        return RecipeSummary(shipped=recipe_text.shipped())
    given = None if recipe is None else as_text("--recipe", recipe, "a file or a name")
    store = place_or_none("--derived-dir", derived_dir)
    if given is not None and store is not None:
        raise UsageError("a recipe and --derived-dir are both given", fix="give one of them")
    return recipe_text.show(given, store, place_or_none("--init", init))
