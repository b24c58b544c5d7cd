"""The places that a command works on: as its flags say, else its recipe, else the defaults."""

from __future__ import annotations

from typing import NamedTuple

from shardwright import recipes
from shardwright.recipes import RecipeFile
from shardwright.recipes.split import Split
from shardwright.storage import urls
from shardwright.storage.urls import Location
from shardwright.store.store import Store
from shardwright.validate import as_text, place, place_or_none


class Places(NamedTuple):
    """A store, the folder of its shards, how the recipe splits them, and its captions."""

    store: Store
    shards: Location
    split: Split | None
    captions: str | None  # the file of captions that the recipe names


def find_recipe(given: object) -> RecipeFile:
    """Read the recipe that ``--recipe`` names, else the one in force."""
    return recipes.find(None if given is None else as_text("--recipe", given, "a file or a name"))


def find_places(recipe: object, derived_dir: object, jsonl: object, shards: object) -> Places:
    """Find the store and the shard folder of a command; raise if the store has another recipe."""
    file = find_recipe(recipe)
    folder = place("--derived-dir", file.paths["store"] if derived_dir is None else derived_dir)
    store = Store.at(folder, place_or_none("--jsonl", jsonl), file)
    output = urls.place("--output-dir", file.paths["shards"] if shards is None else shards)
    return Places(store, output, file.split, file.paths.get("captions"))
