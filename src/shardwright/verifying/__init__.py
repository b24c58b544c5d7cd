"""Verifying: proof that what is on the disk is whole, or a list of what is not.

Shards: ``folder`` → ``shard`` → ``sample`` → ``against`` the store, and ``loader_rules``.
A store: ``store``.
"""

from __future__ import annotations

import os
from dataclasses import replace

from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Progress
from shardwright.store.findings import Finding, VerifyReport
from shardwright.validate import place, place_or_none, require_switches

__all__ = ["Finding", "VerifyReport", "verify"]

StrPath = str | os.PathLike[str]


@entry
def verify(
    path: StrPath = "data/derived",
    *,
    read_data: bool = False,
    against: StrPath | None = None,
    loaders: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a store or a shard folder, and list all that is wrong with its cure.

    Without ``read_data``, a store's records and array headers and sizes are checked, and a shard
    folder's names, sizes and indexes, and the first and last header of each shard; with it every
    byte. ``against`` names the store that shards were packed from, and each member is held against
    its source. ``loaders`` runs the rules of every loader over the shards. Nothing is changed, and
    damage is reported, not raised: look at ``damaged`` and ``findings``.
    """
    # Here, and each where it is needed, because a start is to be quick.
    from shardwright.store.folders import is_store
    from shardwright.verifying.folder import is_shard_folder, verify_shards

    require_switches(read_data=read_data, loaders=loaders)
    target = place("path", path)
    source = place_or_none("--against", against)
    report = progress or Progress()
    if not target.exists():
        raise InputMissingError(f"{target}: no such folder; give a store or a shard folder")
    if not target.is_dir():
        raise UsageError(f"{target}: is a file; give the store or the shard folder that it is in")
    if is_store(target):
        if against is not None or loaders:
            flag = "--loaders" if against is None else "--against"
            raise UsageError(f"{target}: is a store; {flag} is for a shard folder")
        from shardwright.store.store import Store
        from shardwright.verifying.store import verify_store

        return verify_store(
            Store.at(target), read_data=read_data, engine=Local.of(workers), progress=report
        )
    if is_shard_folder(target):
        found = verify_shards(
            target,
            read_data=read_data,
            against=source,
            engine=Local.of(workers),
            progress=report,
        )
        if not loaders:
            return found
        from shardwright.verifying.loader_rules import check_loaders, findings_of

        checks = check_loaders(target, report)
        return replace(
            found,
            findings=[*found.findings, *findings_of(checks, target)],
            loaders={check.loader: check.verdict for check in checks},
        )
    raise UsageError(
        f"{target}: not a store, for it has no {JSONL_NAME}, and not a shard folder, for it has no "
        ".tar; give the folder that derive, migrate or pack wrote"
    )
