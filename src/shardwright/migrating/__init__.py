"""Stage 1 to Stage 2: inline arrays of a JSONL become ``.npy`` files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.storage.files import absence
from shardwright.storage.local import LocalPlace
from shardwright.summary import Summary

if TYPE_CHECKING:
    from shardwright.store.journal import Recovered

__all__ = ["MigrateSummary", "migrate"]

StrPath = str | os.PathLike[str]


@dataclass
class MigrateSummary(Summary):
    """What ``migrate`` did, or would do with ``dry_run``; lists hold line numbers."""

    jsonl: str
    dry_run: bool
    total_records: int = 0
    migrated_records: int = 0
    already_migrated: int = 0
    unmigrated_records: int = 0
    unmigrated_by_reason: dict[str, list[int]] = field(default_factory=dict)
    arrays_written: dict[str, int] = field(default_factory=dict)  # by component
    arrays_found: dict[str, int] = field(default_factory=dict)  # existed, with the same values
    arrays_differing: dict[str, list[int]] = field(default_factory=dict)  # existed, and stay
    jsonl_bytes_before: int = 0
    jsonl_bytes_after: int = 0
    backup: str | None = None
    recovered: Recovered | None = None
    seconds: float = 0.0


@entry
def migrate(
    *,
    recipe: StrPath | None = None,
    derived_dir: StrPath | None = None,
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
    from shardwright.store.store import find_places, holds_shards

    started = time.monotonic()
    store, _, _ = find_places(recipe, derived_dir, jsonl, None)
    derived, path = store.folder, store.jsonl
    if not path.is_file():
        fix = "give the Stage 1 metadata with --jsonl, or its folder with --derived-dir"
        raise InputMissingError(absence(path), path=path, fix=fix)
    if holds_shards(derived):
        raise UsageError("holds shards", path=derived, fix="give the store, or a new folder")
    engine = Local.of(workers)
    for folder in (derived, path.parent):
        LocalPlace(folder).require_writable()
    summary = run(store, backup, dry_run, engine, progress or Progress())
    summary.seconds = round(time.monotonic() - started, 3)
    return summary
