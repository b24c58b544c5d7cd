"""``shardwright.verify``: checks a store or a shard folder, and lists what is wrong.

Shards: ``folder`` → ``shard`` → ``sample`` → ``against`` the store, and ``loader_rules``.
A store: ``store``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

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
    path: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    read_data: bool = False,
    against: StrPath | None = None,
    loaders: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a store or a shard folder, and list what is wrong with its fix.

    Without ``read_data`` this checks the records, array headers and sizes of a store, or the names,
    sizes, indexes and records of a shard folder and the first and last header of each shard; with
    it, every byte. ``against`` names the store that shards were packed from, to compare each member
    with its source; what the store has changed since is outdated, which is no damage. ``loaders``
    applies the rules of every loader to the shards. Nothing is changed. Damage is reported, not
    raised: see ``damaged``, ``outdated`` and ``findings``.
    """
    # Imported where they are needed, for a quick start.
    from shardwright.shards.format.parts import is_packed, parts_of, require_no_parts
    from shardwright.store.folders import is_store
    from shardwright.store.places import find_recipe
    from shardwright.verifying.folder import is_shard_folder, verify_shards
    from shardwright.verifying.parts import verify_parts

    require_switches(read_data=read_data, loaders=loaders)
    file = find_recipe(recipe)
    target = file.paths["store"] if path is None else place("path", path)
    source = place_or_none("--against", against)
    engine, report = Local.of(workers), progress or Progress()
    if not target.exists():
        raise InputMissingError("no such folder", path=target, fix="give a store or a shard folder")
    if not target.is_dir():
        fix = "give the store or the shard folder that it is in"
        raise UsageError("is a file", path=target, fix=fix)
    if is_store(target):
        if against is not None or loaders:
            flag = "--loaders" if against is None else "--against"
            raise UsageError("is a store", path=target, fix=f"{flag} is for a shard folder")
        from shardwright.store.store import Store
        from shardwright.verifying.store import verify_store

        store = Store.at(target, given=file)
        return verify_store(store, read_data=read_data, engine=engine, progress=report)
    if loaders:
        require_no_parts(target)
    parts = {} if is_packed(target) else parts_of(target)
    if not parts and not is_shard_folder(target):
        what = f"is not a store (no {JSONL_NAME}) and not a shard folder (no .tar)"
        fix = "give the folder that derive, migrate or pack wrote"
        raise UsageError(what, path=target, fix=fix)
    verified = partial(verify_parts, parts=parts) if parts else verify_shards
    found = verified(target, read_data=read_data, against=source, engine=engine, progress=report)
    if not loaders:
        return found
    from shardwright.verifying.loader_rules import check_loaders, findings_of

    checks = check_loaders(target, report)
    return replace(
        found,
        findings=[*found.findings, *findings_of(checks, target)],
        loaders={check.loader: check.verdict for check in checks},
    )
