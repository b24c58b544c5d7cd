"""Stage 1 to Stage 2: inline arrays of a JSONL become ``.npy`` files."""

from __future__ import annotations

import os
import time

from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.migrating.summary import MigrateSummary
from shardwright.progress import Progress
from shardwright.storage.local import require_writable
from shardwright.validate import place, require_switches

__all__ = ["MigrateSummary", "migrate"]

StrPath = str | os.PathLike[str]


@entry
def migrate(
    *,
    derived_dir: StrPath = "data/derived",
    jsonl: StrPath | None = None,
    backup: bool = True,
    dry_run: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> MigrateSummary:
    """Turn a Stage 1 JSONL into a Stage 2 store, in place.

    Arguments are named like the flags of ``shardwright migrate``. A line that cannot be migrated
    stays as it is; the summary has its number and the reason.
    """
    # Here, so that importing the package and printing --help are quick.
    from shardwright.migrating.run import run
    from shardwright.store.folders import holds_shards
    from shardwright.store.store import Store

    require_switches(backup=backup, dry_run=dry_run)
    started = time.monotonic()
    derived = place("--derived-dir", derived_dir)
    path = place("--jsonl", derived / JSONL_NAME if jsonl is None else jsonl)
    if not path.is_file():
        fix = "give the Stage 1 metadata with --jsonl, or its folder with --derived-dir"
        raise InputMissingError("no such file", path=path, fix=fix)
    if holds_shards(derived):
        raise UsageError("holds shards", path=derived, fix="give the store, or a new folder")
    engine = Local.of(workers)
    for folder in (derived, path.parent):
        require_writable(folder)
    store = Store.at(derived, path)
    summary = run(store, backup, dry_run, engine, progress or Progress())
    summary.seconds = round(time.monotonic() - started, 3)
    return summary
