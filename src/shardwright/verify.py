"""Verifying: proof that what is on the disk is whole, or a list of what is not."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.schema import JSONL_NAME
from shardwright.store.findings import Finding, VerifyReport
from shardwright.store.verify import is_store, verify_store
from shardwright.workers import count

__all__ = ["Finding", "VerifyReport", "verify"]


def verify(
    path: str | os.PathLike[str] = "data/derived",
    *,
    read_data: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every record and array of a store, and list all that is wrong with its cure.

    Headers and sizes are always checked; ``read_data`` also reads every value. Nothing is changed,
    and damage is reported, not raised: look at ``damaged`` and ``findings``.
    """
    target = Path(path)
    if not target.exists():
        raise InputMissingError(f"{target}: no such folder; give the folder of a store")
    if not is_store(target):
        raise UsageError(
            f"{target}: not a store, for it has no {JSONL_NAME}; give the folder that derive or "
            "migrate wrote"
        )
    return verify_store(
        target, read_data=read_data, workers=count(workers), progress=progress or Progress()
    )
