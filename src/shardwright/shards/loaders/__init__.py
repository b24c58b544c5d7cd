"""``shardwright.index``: the files that other loaders need beside the shards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.entry import entry
from shardwright.storage.urls import place
from shardwright.summary import Summary
from shardwright.validate import names


@dataclass(frozen=True)
class IndexSummary(Summary):
    """What ``index`` did."""

    shards: str
    loaders: list[str]
    written: list[str]  # paths below the shard folder
    removed: list[str]


@entry
def index(
    shards: str | os.PathLike[str] | None = None,
    *,
    recipe: str | os.PathLike[str] | None = None,
    for_: Iterable[str] = (),
    remove: bool = False,
) -> IndexSummary:
    """Write the index files that other loaders need, or remove them, in a folder or at a URL.

    Files left from an earlier packing are removed. A file that ``index`` did not write, or that
    was edited since, is never replaced: that is an error. Your text in the dataset card stays.
    """
    # Here, so that the package and --help are imported quickly.
    from shardwright.shards.loaders.indexes import write_indexes
    from shardwright.store.store import find_recipe

    folder = place("shards", find_recipe(recipe).paths["shards"] if shards is None else shards)
    return write_indexes(folder, names("--for", for_), remove)
