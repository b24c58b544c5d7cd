"""A run of packing from start to end: scan, check, plan, write, publish."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardwright.engine import Engine
from shardwright.errors import (
    NoSpaceError,
    ProvenanceError,
    ShardExistsError,
    SourceChangedError,
    UsageError,
)
from shardwright.packing import empty, publish, start
from shardwright.packing.check import check
from shardwright.packing.origin import jsonl_name, require_same_jsonl, require_same_kind
from shardwright.packing.plan import Plan, Shard, plan, select
from shardwright.packing.scan import Scan, require_inputs, scan
from shardwright.packing.start import Start, existing, packed_from
from shardwright.packing.summary import BucketSummary, PackSummary
from shardwright.progress import Progress
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import PackSettings, ShardEntry, Unfinished
from shardwright.shards.format.names import bucket_folder, existing_buckets
from shardwright.storage import locks
from shardwright.storage.local import LocalStorage, free_bytes, require_space, require_writable
from shardwright.store import commands, provenance
from shardwright.store.provenance import Entry
from shardwright.store.store import Store


@dataclass(frozen=True)
class Request:
    """The arguments of a run, after validation."""

    store: Store
    output_dir: Path
    settings: PackSettings
    way: str | None  # overwrite, resume or append, where shards may be there already
    other_jsonl: bool
    sha256: bool
    ignore_space: bool
    dry_run: bool
    progress_every: int
    engine: Engine


def run(request: Request, progress: Progress) -> PackSummary:
    """Scan, check, plan, and write what is not there yet."""
    started = time.monotonic()
    store, target, settings = request.store, request.output_dir, request.settings
    require_inputs(store)
    _require_own_folder(request)
    require_writable(target)
    if not request.dry_run:
        locks.require_unlocked(target)
    found = scan(store, progress, request.progress_every)
    _require_samples(settings.buckets, found)
    start = _start(request)
    entries, empties = provenance.read(store.folder), empty.read(store)
    made = {  # without the component, because the manifest has the recipe
        name: msgspec.structs.replace(entry, component=None)
        for name, entry in entries.items()
        if name in store.recipe.by_name
    }
    before = [] if request.other_jsonl else packed_from(target)
    if request.way:
        require_same_jsonl(store, before, target)
    order = select(found, settings, start.known)
    checked = check(found, order, settings.limit, request.engine, progress)
    layout = plan(found, checked, settings, start.first_numbers)
    kept = _kept(layout, start, request)
    todo = [shard for shard in layout.shards if shard.path not in kept]
    old: list[str] = []  # shards that are removed or replaced
    obstacle = None
    if layout.shards or start.append:
        there = list(start.loose)
        if not request.way:
            there += existing(target, layout.buckets)
        try:
            publish.refuse(target, there, settings.buckets)
            require_same_jsonl(store, before, target)
            require_same_kind(store, made, start.base, target, progress)
            if not request.ignore_space:
                needed, fewer = sum(shard.bytes for shard in todo), "--limit or --bucket"
                require_space(target, "the shards need", needed, f"pack fewer with {fewer}, ")
        except (ShardExistsError, ProvenanceError, NoSpaceError) as error:
            if not request.dry_run:
                raise
            obstacle = str(error)
        if not request.dry_run:
            with LocalStorage(target).lease():
                if _start(request) != start:
                    what = "another run has written here"
                    raise SourceChangedError(what, path=target, fix="run again")
                old = _old(todo, kept, start, target)
                _write(layout, todo, kept, start, made, empties, request, progress)
        elif obstacle is None:
            old = _old(todo, kept, start, target)
    summary = _summary(layout, todo, request, len(kept), obstacle, old)
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _require_own_folder(request: Request) -> None:
    """Keep shards out of the store's own folders."""
    target, store = request.output_dir.resolve(), request.store
    arrays = [store.arrays(component).resolve() for component in store.recipe.components]
    if target == store.folder.resolve() or any(target.is_relative_to(folder) for folder in arrays):
        fix = "give another --output-dir"
        raise UsageError("belongs to the store", path=request.output_dir, fix=fix)


def _start(request: Request) -> Start:
    if request.way == "append":
        return start.append(request.output_dir)
    if request.way == "resume":
        return start.resume(request.output_dir)
    overwrite, only = request.way == "overwrite", request.settings.buckets
    return start.fresh(request.output_dir, overwrite=overwrite, only=only)


def _kept(layout: Plan, start: Start, request: Request) -> dict[str, ShardEntry]:
    """Find the shards of the interrupted run that need not be written again."""
    if start.resumed is None:
        return {}
    digest = layout.digest()
    if request.way == "resume":
        start.require_same(digest, layout.settings)
    if start.resumed.plan != digest:
        return {}
    entries = publish.finished(request.output_dir, layout)
    return {path: e for path, e in entries.items() if e.bucket not in start.replaced}


def _old(todo: Sequence[Shard], kept: Collection[str], start: Start, target: Path) -> list[str]:
    """List the shards that are there and do not stay."""
    stay = {*kept, *(entry.path for entry in start.base.shards)}
    new = {shard.path for shard in todo}
    buckets = existing_buckets(target)
    # An interrupted --append may have left shards anywhere that are not planned now.
    going = {bucket_folder(name) for name in (buckets if start.append else start.replaced)}
    found = (f"{path.parent.name}/{path.name}" for path in existing(target, buckets))
    return [
        name
        for name in found
        if name not in stay and (name in new or name.partition("/")[0] in going)
    ]


def _write(
    layout: Plan,
    todo: Sequence[Shard],
    kept: dict[str, ShardEntry],
    start: Start,
    made: Mapping[str, Entry],
    empties: Mapping[str, bytes],
    request: Request,
    progress: Progress,
) -> None:
    """Write the shards that are missing, then the manifest of all."""
    target, sha256 = request.output_dir, request.sha256
    if start.base.shards:  # SHA256SUMS, once there, is kept up
        sha256 |= all(entry.sha256 is not None for entry in start.base.shards)
    begun = Unfinished(
        append=start.append,
        plan=layout.digest(),
        settings=layout.settings,
        replaces=sorted(start.replaced),
        base=start.base,
        store=manifest.relative_name(request.store.folder, target),
        jsonl=jsonl_name(request.store),
    )
    manifest.save_unfinished(target, begun)
    try:
        if start.append:  # an interrupted one may have left shards that are not planned now
            listed = {entry.path for entry in start.base.shards} | kept.keys()
            for name in existing_buckets(target):
                publish.remove_shards(target, name, keep=listed)
        written = publish.write(
            layout,
            todo,
            target,
            replaced=start.replaced,
            sha256=sha256,
            engine=request.engine,
            progress=progress,
        )
        for name in sorted(set(start.replaced) - set(layout.buckets)):  # no sample is in them now
            manifest.remove_manifest(target)
            publish.remove_shards(target, name)
        checksums = empty.publish(target, start.base, empties)
        publish.sync(target)  # before the manifest lists them
        entries = [*kept.values(), *written]
        publish.finish(target, layout, begun, entries, made, checksums, sha256)
    except KeyboardInterrupt as interrupt:
        instead = f" instead of --{request.way}" if request.way in ("overwrite", "append") else ""
        interrupt.add_note(f"to continue, run the same pack with --resume{instead}")
        raise


def _summary(
    layout: Plan,
    todo: Sequence[Shard],
    request: Request,
    kept_shards: int,
    obstacle: str | None,
    old: Sequence[str],
) -> PackSummary:
    new = {shard.path for shard in todo}
    buckets: dict[str, BucketSummary] = {}
    for shard in todo:
        entry = buckets.setdefault(shard.bucket, BucketSummary())
        entry.samples += len(shard.samples)
        entry.shards += 1
        entry.bytes += shard.bytes
        entry.shard_bytes[shard.path.rpartition("/")[2]] = shard.bytes
        entry.off_shape += sum(layout.checked.off_shape[sample] for sample in shard.samples)
    off_shape = any(entry.off_shape for entry in buckets.values())
    journal = request.store.journal if request.store.journal.exists() else None
    derive = None
    if off_shape or journal:
        derive = commands.derive(request.store, fit_buckets=off_shape)
    return PackSummary(
        total_records=layout.scan.total_records,
        ready_records=layout.ready_records,
        skipped_incomplete=layout.skipped.total,
        unopened_records=layout.ready_records - len(layout.checked.chosen),
        written_samples=sum(entry.samples for entry in buckets.values()),
        written_shards=len(todo),
        written_bytes=sum(entry.bytes for entry in buckets.values()),
        kept_shards=kept_shards,
        dry_run=request.dry_run,
        obstacle=obstacle,
        replaced_shards=[name for name in old if name in new],
        removed_shards=[name for name in old if name not in new],
        free_bytes=free_bytes(request.output_dir),
        output_dir=str(request.output_dir),
        journal=str(journal) if journal else None,
        derive_command=derive,
        seconds=0.0,
        skipped_by_reason=dict(layout.skipped),
        buckets=buckets,
    )


def _require_samples(only: Sequence[str], found: Scan) -> None:
    """Raise for a bucket that is neither in the recipe nor in the store: a typing mistake."""
    present = {found.buckets[sample] for sample in found.ready()} if only else set()
    for name in sorted(set(only) - present - set(map(str, found.store.recipe.buckets))):
        fix = f"give some of {', '.join(sorted(present))}" if present else None
        raise UsageError(f"--bucket {name}: no ready sample is in it", fix=fix)
