"""What a run does in each of its targets, and the summary of all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from shardwright.buckets import Bucket
from shardwright.errors import DamageError, ShardwrightError, UsageError
from shardwright.interrupts import check
from shardwright.packing import again
from shardwright.packing.outdated import Comparison
from shardwright.packing.plan import Checked, Plan, Shard
from shardwright.packing.scan import Scan
from shardwright.packing.select import Selected
from shardwright.packing.start import Start, changed_settings, existing
from shardwright.packing.summary import BucketSummary, PackSummary, PartSummary, SyncSummary
from shardwright.shards.format import index, records
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.names import bucket_folder, existing_buckets, shard_name
from shardwright.shards.format.parts import top_folder
from shardwright.shards.format.writer import entry_of
from shardwright.shards.loaders.indexes import read_record
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import commands


@dataclass(frozen=True)
class Job:
    """The next state of a folder: what stays, what goes, and what is made."""

    start: Start
    layout: Plan
    kept: dict[str, ShardEntry]  # of the interrupted run

    @property
    def folder(self) -> Location:
        """Give its shard folder."""
        return self.start.folder

    @property
    def has_other_settings(self) -> bool:
        """Whether a sync has other settings than the run before."""
        runs = self.start.before.runs if self.start.before else []
        return bool(runs) and runs[-1].settings != self.layout.settings

    @property
    def way(self) -> str:
        """Name the flag that packs again what this run did not finish."""
        return "--sync" if self.start.before else "--append" if self.start.append else "--overwrite"

    @property
    def stay(self) -> set[str]:
        """Name the shards that are there and stay."""
        return {*self.kept, *(entry.path for entry in self.start.base.shards)}

    @property
    def todo(self) -> list[Shard]:
        """Give the shards to write."""
        return [shard for shard in self.layout.shards if shard.path not in self.kept]

    @property
    def old(self) -> list[str]:
        """List the shards that are there and do not stay."""
        stay, new = self.stay, {shard.path for shard in self.todo}
        buckets = existing_buckets(self.folder)
        # An interrupted --append may have left shards anywhere that are not planned now.
        going = set(map(bucket_folder, buckets if self.start.append else self.start.replaced))
        found = (f"{path.parent.name}/{path.name}" for path in existing(self.folder, buckets))
        return [
            name
            for name in found
            if name not in stay and (name in new or name.partition("/")[0] in going)
        ]


def job_of(begin: Start, layout: Plan, way: str | None) -> Job:
    """Complete the next state of a folder by what is planned; raise if another run is resumed."""
    kept, note = dict[str, ShardEntry](), begin.note
    if note is not None and way in ("append", "resume", "sync"):
        if note.plan == layout.digest:
            done = finished(begin.folder, layout)
            kept = {path: e for path, e in done.items() if e.bucket not in begin.replaced}
        elif way == "resume":
            changes = changed_settings(note.settings, layout.settings)
            differing = [f"{flag} was {old} and is {new}" for flag, old, new in changes]
            what = ", ".join(differing) or "the records or arrays of the store have changed"
            fix = f"run it as before, with {with_layout('--resume', note.settings)}, or pack again "
            fix += f"with {'--sync' if begin.before else with_layout('--overwrite', note.settings)}"
            raise UsageError(f"--resume: this is not the run to resume: {what}", fix=fix)
    job = Job(begin, layout, kept)
    if begin.before:  # buckets with shards that are replaced or removed
        stay = {begin.folder / path for path in job.stay}
        mixed = {
            bucket
            for bucket in existing_buckets(begin.folder)
            if not stay.issuperset(existing(begin.folder, [bucket]))
        }
        job = replace(job, start=replace(begin, replaced=sorted(mixed.union(begin.replaced))))
    return job


def finished(output: Location, plan: Plan) -> dict[str, ShardEntry]:
    """Find the planned shards that are already there, complete and with the planned samples."""
    look = partial(_finished, output, plan)
    entries = place_at(output).each(look, plan.shards)
    return {entry.path: entry for entry in entries if entry is not None}


def _finished(output: Location, plan: Plan, shard: Shard) -> ShardEntry | None:
    check()
    path = output / index.index_name(shard.path)
    try:
        data = files.read(path)
        head = index.decode(data, path).head
        records_xxh3 = records.checksum(output, shard.path)
        there = (output / shard.path).stat()
        store, ids = plan.scan.store, [plan.scan.ids[sample] for sample in shard.samples]
        paths = (store.array(row, image_id) for image_id in ids for row in store.recipe.components)
        recomputed = max(os.stat(path).st_ctime_ns for path in paths) > there.st_ctime_ns
    except (OSError, ShardwrightError):
        return None
    found = (head.ids, head.shard, head.bytes, there.st_size, head.records_xxh3)
    planned = (ids, shard.path, shard.bytes, shard.bytes, records_xxh3)
    return None if recomputed or found != planned else entry_of(head, data)


def foreseen(jobs: Sequence[Job], scan: Scan) -> Iterator[tuple[str, str]]:
    """Give the samples that parts of a split will have, each with its part."""
    for job in jobs:
        part = job.start.part or ""
        for shard in job.layout.shards:
            yield from ((scan.ids[sample], part) for sample in shard.samples)
        for entry in job.start.base.shards:
            with suppress(DamageError):  # for verify to report
                yield from ((name, part) for name in index.load(job.folder, entry.path).head.ids)


def summarize(
    jobs: Sequence[Job],
    selected: Selected,
    checked: Checked,
    scan: Scan,
    old: Mapping[str, Sequence[str]],
    synced: Comparison | None,
    *,
    output: Location,
    dry_run: bool,
    obstacle: str | None,
    started: float,
) -> PackSummary:
    """Count what was written, and what was not; ``old`` are the shards that went, by prefix.

    ``synced`` is what a sync found.
    """
    buckets, parts = _tables(jobs, checked)
    new = {job.start.prefix + shard.path for job in jobs for shard in job.todo}
    kept = [shard for job in jobs for shard in job.layout.shards if shard.path in job.kept]
    rewritten = {sample for job in jobs for shard in job.start.again for sample in shard.samples}
    finished = sum(sample not in rewritten for shard in kept for sample in shard.samples)
    gone = [prefix + name for prefix, names in old.items() for name in names]
    off_shape = any(entry.off_shape for entry in buckets.values())
    journal = scan.store.journal if scan.store.journal.exists() else None
    derive = pack = None
    if off_shape or journal:
        derive = commands.derive(scan.store, fit_buckets=off_shape)
    if off_shape and place_at(output).can_replace and not dry_run:
        pack = again.overwrite(scan.store, top_folder(output, jobs[0].layout.settings))
    return PackSummary(
        total_records=scan.total_records,
        ready_records=checked.ready_records,
        skipped_incomplete=checked.skipped.total,
        unopened_records=checked.ready_records - len(checked.chosen),
        written_samples=sum(entry.samples for entry in buckets.values()),
        written_shards=len(new),
        written_bytes=sum(entry.bytes for entry in buckets.values()),
        kept_shards=len(kept),
        dry_run=dry_run,
        obstacle=obstacle,
        replaced_shards=[name for name in gone if name in new],
        removed_shards=[name for name in gone if name not in new],
        free_bytes=place_at(output).free_bytes(),
        output_dir=str(output),
        journal=str(journal) if journal else None,
        derive_command=derive,
        pack_command=pack,
        seconds=round(time.monotonic() - started, 3),
        skipped_by_reason=dict(checked.skipped),
        buckets=buckets,
        left_out=dict(selected.left_out),
        packed_before=selected.packed_before + finished,
        over_limit=len(selected.order) - len(checked.chosen) - len(checked.invalid),
        parts=parts,
        synced=_synced(jobs, synced, checked, scan) if synced else None,
        index_commands=[] if obstacle else list(_index_commands(jobs, old)),
    )


def _tables(
    jobs: Sequence[Job], checked: Checked, *, stays: bool = False
) -> tuple[dict[str, BucketSummary], dict[str, PartSummary]]:
    """Count what is written, by bucket and by part; with ``stays``, also the shards that stay."""
    total, parts = PartSummary(), dict[str, PartSummary]()
    for job in jobs:
        tables = {job.start.prefix: total}
        if job.start.part and job.layout.settings.split:
            tables[""] = parts[job.start.part] = PartSummary()
        for shard in job.todo:
            name = shard.path.rpartition("/")[2]
            off_shape = sum(checked.off_shape[sample] for sample in shard.samples)
            for prefix, table in tables.items():
                bucket = table.count_in(shard.bucket, len(shard.samples), shard.bytes)
                bucket.off_shape += off_shape
                bucket.shard_bytes[prefix + name] = shard.bytes
        for one in (*job.start.base.shards, *job.kept.values()) if stays else ():
            for table in tables.values():
                table.count_in(one.bucket, one.samples, one.bytes)
    for table in (total, *parts.values()):
        in_order = sorted(table.buckets.items(), key=lambda item: Bucket.parse(item[0]))
        table.buckets = dict(in_order)
    return total.buckets, parts


def _index_commands(jobs: Sequence[Job], old: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Write a command for each target whose shards change under the files of other loaders."""
    for job in jobs:
        changes = job.todo or old.get(job.start.prefix)
        if changes and (loaders := read_record(job.folder)):
            empty = not (job.layout.shards or job.start.base.shards)
            yield commands.index(job.folder, loaders, *["--remove"] * empty)


def _synced(jobs: Sequence[Job], found: Comparison, checked: Checked, scan: Scan) -> SyncSummary:
    renumbered = {}
    for job in jobs:
        for shard in job.start.again:
            path = f"{bucket_folder(shard.bucket)}/{shard_name(shard.number)}"
            if path != shard.before:
                renumbered[job.start.prefix + shard.before] = job.start.prefix + path
    chosen = set(checked.chosen)
    for sample in found.moved.keys() - chosen:  # a limit has given its place to another
        found.changed.take(found.moved[sample])
        found.removed.add("not_selected", scan.ids[sample])
    buckets, parts = _tables(jobs, checked, stays=True)
    return SyncSummary(
        changed=dict(found.changed),
        removed=dict(found.removed),
        new_samples=len(chosen - found.moved.keys()),
        moved_shards=renumbered,
        untouched_shards=sum(len(job.start.base.shards) for job in jobs),
        new_settings=any(job.has_other_settings for job in jobs),
        buckets=buckets,
        parts=parts,
    )
