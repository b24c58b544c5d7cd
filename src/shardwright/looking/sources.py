"""What a viewer can be opened on: a store or shards; each has a table, records and members.

Samples are numbered from 0 in the order of the table.
"""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.looking.shards import ShardSource
from shardwright.looking.stores import StoreSource
from shardwright.progress import Progress
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.store.folders import is_store
from shardwright.store.store import Store, find_recipe
from shardwright.validate import as_text
from shardwright.verifying.folder import is_shard_folder

Source = StoreSource | ShardSource


def open_source(flag: str, path: object, recipe: object, progress: Progress) -> Source:
    """Open a store, a shard folder, a split folder or a URL."""
    file = find_recipe(recipe)
    location = file.paths["store"] if path is None else as_text(flag, path)
    folder = Path(location)
    if "://" not in location:
        if not folder.exists():
            fix = "give a store or a shard folder"
            raise InputMissingError("no such folder", path=folder, fix=fix)
        if not folder.is_dir():
            fix = "give the store or the shard folder that it is in"
            raise UsageError("is a file", path=folder, fix=fix)
        if is_store(folder):
            return StoreSource(Store.at(folder, given=file), progress)
        if not (is_packed(folder) or parts_of(folder) or is_shard_folder(folder)):
            what = f"is not a store (no {JSONL_NAME}) and not a shard folder (no .tar)"
            fix = "give the folder that derive, migrate or pack wrote"
            raise UsageError(what, path=folder, fix=fix)
    return ShardSource(location, progress)
