"""The status of a store: what is ready, what is missing, and what to do next."""

from __future__ import annotations

import os

from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.reporting.summary import BucketStatus, ComponentStatus, PackedStatus, StoreStatus
from shardwright.validate import place, place_or_none

__all__ = ["BucketStatus", "ComponentStatus", "PackedStatus", "StoreStatus", "status"]

StrPath = str | os.PathLike[str]


@entry
def status(
    *,
    derived_dir: StrPath = "data/derived",
    jsonl: StrPath | None = None,
    output_dir: StrPath = "data/shards",
    workers: int | None = None,
    progress: Progress | None = None,
) -> StoreStatus:
    """Report what is ready in a store, what is missing, and what to do next.

    Arguments are named like the flags of ``shardwright status``. Reads the metadata, the header of
    every array, and the indexes of the shards in ``output_dir`` and in the folders directly below
    it. Changes nothing.
    """
    # Here, so that importing the package and printing --help are quick.
    from shardwright.reporting.run import look
    from shardwright.store import commands
    from shardwright.store.folders import holds_shards
    from shardwright.store.store import Store

    engine = Local.of(workers)
    derived = place("--derived-dir", derived_dir)
    store = Store.at(derived, place_or_none("--jsonl", jsonl))
    if not derived.exists():
        fix = f"give another --derived-dir, or make it with {commands.derive(store)}"
        raise InputMissingError("no such folder", path=derived, fix=fix)
    if not derived.is_dir():
        raise UsageError("is a file", path=derived, fix="give the folder of a store")
    if holds_shards(derived):
        fix = "give the store it was packed from, or run shardwright verify on it"
        raise UsageError("is a shard folder", path=derived, fix=fix)
    return look(store, place("--output-dir", output_dir), engine, progress or Progress())
