"""What a store holds, what it lacks, how large its shards will be, and what to do next."""

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
    """Say what a store holds and lacks, as ``pack`` would see it, and what to do next.

    Arguments are named as the flags of ``shardwright status``. Reads the metadata and the header of
    every array, and the indexes of the shards in ``output_dir`` and in the folders directly below
    it; changes nothing.
    """
    # Here, because the package and its --help are to be imported quickly.
    from shardwright.reporting.run import look
    from shardwright.store import commands
    from shardwright.store.folders import holds_shards
    from shardwright.store.store import Store

    engine = Local.of(workers)
    derived = place("--derived-dir", derived_dir)
    store = Store.at(derived, place_or_none("--jsonl", jsonl))
    if not derived.exists():
        raise InputMissingError(
            f"{derived}: no such folder; give another --derived-dir, or make it with "
            f"{commands.derive(store)}"
        )
    if not derived.is_dir():
        raise UsageError(f"{derived}: is a file; give the folder of a store")
    if holds_shards(derived):
        raise UsageError(
            f"{derived}: is a shard folder; give the store it was packed from, or run shardwright "
            "verify on it"
        )
    return look(store, place("--output-dir", output_dir), engine, progress or Progress())
