"""The end of packing: the manifest, which says what is there and why."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from msgspec import UNSET

from shardwright.interrupts import check
from shardwright.packing.origin import Origin
from shardwright.packing.plan import Plan
from shardwright.packing.start import Start
from shardwright.recipe import SPECIFICATION
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry
from shardwright.version import __version__


def finish(
    layout: Plan,
    digest: str,
    entries: Sequence[ShardEntry],
    start: Start,
    origin: Origin,
    target: Path,
    sha256: bool,
) -> None:
    """Publish the manifest, which ends the run."""
    runs, shards = start.base.runs, start.base.shards
    if entries:
        number = len(runs)
        runs = [*runs, _run(layout, digest, start.append, origin)]
        shards = [*shards, *(msgspec.structs.replace(entry, run=number) for entry in entries)]
    shards = sorted(shards, key=lambda entry: entry.path)
    if sha256:
        shards = [_with_sha256(entry, target) for entry in shards]
    recipe = layout.scan.store.recipe
    kind = UNSET if recipe == SPECIFICATION else recipe
    whole = Manifest(runs=runs, shards=shards, recipe=kind)
    manifest.save_sha256(target, whole)
    manifest.save_manifest(target, whole)
    manifest.remove_unfinished(target)


def _run(layout: Plan, digest: str, append: bool, origin: Origin) -> Run:
    return Run(
        tool=f"shardwright {__version__}",
        append=append,
        settings=layout.settings,
        plan=digest,
        total_records=layout.scan.total_records,
        ready_records=layout.ready_records,
        skipped_incomplete=layout.skipped.total,
        skipped_by_reason={name: asdict(reason) for name, reason in layout.skipped.items()},
        samples=sum(len(shard.samples) for shard in layout.shards),
        shards=len(layout.shards),
        provenance=origin.provenance,
        jsonl=origin.jsonl_name,
    )


def _with_sha256(entry: ShardEntry, target: Path) -> ShardEntry:
    """Read a shard that was packed without --sha256 for its digest."""
    if entry.sha256 is not None:
        return entry
    hasher = hashlib.sha256()
    with (target / entry.path).open("rb") as file:
        while data := file.read(1 << 20):
            check()
            hasher.update(data)
    return msgspec.structs.replace(entry, sha256=hasher.hexdigest())
