"""Stage 3: a store of arrays to WebDataset tar shards, by scan, plan and write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardwright import files
from shardwright.buckets import BUCKETS, is_bucket
from shardwright.errors import UsageError
from shardwright.pack import history, output
from shardwright.pack.finish import finish
from shardwright.pack.history import Start
from shardwright.pack.plan import Plan, Shard, plan
from shardwright.pack.scan import Scan, require_inputs, scan
from shardwright.pack.summary import BucketSummary, PackSummary, SkippedReason
from shardwright.progress import Progress
from shardwright.schema import JSONL_NAME
from shardwright.shards import manifest
from shardwright.shards.manifest import Settings, ShardEntry, Unfinished
from shardwright.shards.names import existing_buckets
from shardwright.workers import count as worker_count

__all__ = ["BucketSummary", "PackSummary", "SkippedReason", "pack"]

StrPath = str | os.PathLike[str]


@files.explained()
def pack(
    *,
    derived_dir: StrPath = "data/derived",
    jsonl: StrPath | None = None,
    output_dir: StrPath = "data/shards",
    bucket: Iterable[str] = (),
    shard_size: int = 1000,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    resume: bool = False,
    append: bool = False,
    sha256: bool = False,
    dry_run: bool = False,
    progress_every: int = 500,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack the ready samples of a store into tar shards, one folder per aspect bucket.

    Arguments are named as the flags of ``shardwright pack``. Raises ShardExistsError (a
    FileExistsError) before anything is written if a bucket already has shards, unless
    ``overwrite``, ``resume`` or ``append``; InputMissingError (a FileNotFoundError) if the store is
    not there.
    """
    started = time.monotonic()
    workers = worker_count(workers)
    _require_positive(shard_size=shard_size, progress_every=progress_every)
    if limit is not None and limit < 0:
        raise UsageError(f"--limit is {limit}; it counts samples, so give 0 or more")
    if overwrite + resume + append > 1:
        raise UsageError("--overwrite, --resume and --append exclude one another")
    only = _bucket_names(bucket)
    settings = Settings(
        buckets=sorted(only),
        shuffle=shuffle,
        seed=seed if shuffle else None,
        limit=limit,
        shard_size=shard_size,
    )
    derived, target = Path(derived_dir), Path(output_dir)
    metadata = Path(jsonl) if jsonl is not None else derived / JSONL_NAME
    report = progress or Progress()
    try:
        require_inputs(metadata, derived)
        found = scan(metadata, derived, report, progress_every)
        _require_samples(only, found)
        if append:
            start = history.append(target)
        elif resume:
            start = history.resume(target)
        else:
            start = history.fresh(target, overwrite=overwrite, only=only)
        layout = plan(
            found,
            settings,
            known=start.known,
            first_numbers=start.first_numbers,
            workers=workers,
            progress=report,
        )
        kept = _kept(layout, start, target, resume)
        todo = [shard for shard in layout.shards if shard.path not in kept]
        there = [] if start.append else output.existing(target, layout.buckets)
        if not dry_run and (layout.shards or start.append):
            may_exist = overwrite or resume or append
            output.refuse(target, [*start.loose, *(() if may_exist else there)])
            output.require_space(target, sum(shard.bytes for shard in todo))
            with files.lock(target):
                if not may_exist:  # once more, now that nobody else can be writing
                    output.refuse(target, output.existing(target, layout.buckets))
                _write(layout, todo, kept, start, target, overwrite, sha256, workers, report)
    finally:
        report.close()
    return _summary(
        layout,
        todo,
        kept_shards=len(kept),
        dry_run=dry_run,
        existing_shards=len(there),
        free_bytes=files.free_bytes(target),
        output_dir=str(target),
        seconds=round(time.monotonic() - started, 3),
    )


def _kept(layout: Plan, start: Start, target: Path, resume: bool) -> dict[str, ShardEntry]:
    """Find the shards of the interrupted run that need not be written again."""
    if start.plan is None:
        return {}
    digest = layout.digest()
    if resume:
        start.require_same(digest, layout.settings)
    if start.plan != digest:
        return {}
    entries = output.finished(target, layout)
    return {path: e for path, e in entries.items() if e.bucket not in start.half_replaced}


def _write(
    layout: Plan,
    todo: Sequence[Shard],
    kept: dict[str, ShardEntry],
    start: Start,
    target: Path,
    overwrite: bool,
    sha256: bool,
    workers: int,
    progress: Progress,
) -> None:
    """Write the shards that are missing, then the manifest of all."""
    replaced = set(start.half_replaced)
    if overwrite:
        scope = layout.buckets if layout.settings.buckets else existing_buckets(target)
        replaced |= {name for name in scope if output.existing(target, [name])}
    digest = layout.digest()
    manifest.save_unfinished(
        target,
        Unfinished(
            append=start.append,
            plan=digest,
            settings=layout.settings,
            replaces=sorted(replaced),
            base=start.base,
        ),
    )
    if start.append:  # an interrupted one may have left shards that are not planned now
        listed = {entry.path for entry in start.base.shards} | kept.keys()
        for name in existing_buckets(target):
            output.remove_shards(target, name, keep=listed)
    written = output.write(
        layout,
        todo,
        target,
        replaced=replaced,
        sha256=sha256,
        workers=workers,
        progress=progress,
    )
    for name in sorted(replaced.difference(layout.buckets)):  # no sample is in them any more
        manifest.remove_manifest(target)
        output.remove_shards(target, name)
    output.sync(target)  # before the manifest speaks of them
    finish(layout, digest, [*kept.values(), *written], start, target, sha256)


def _summary(
    layout: Plan,
    todo: Sequence[Shard],
    *,
    kept_shards: int,
    dry_run: bool,
    existing_shards: int,
    free_bytes: int,
    output_dir: str,
    seconds: float,
) -> PackSummary:
    found = layout.scan
    buckets: dict[str, BucketSummary] = {}
    for shard in todo:
        entry = buckets.setdefault(shard.bucket, BucketSummary())
        entry.samples += len(shard.samples)
        entry.shards += 1
        entry.bytes += shard.bytes
        entry.shard_bytes[shard.path.rpartition("/")[2]] = shard.bytes
        entry.off_shape += sum(layout.checked.off_shape[sample] for sample in shard.samples)
    return PackSummary(
        total_records=found.total_records,
        ready_records=found.ready_records,
        skipped_incomplete=found.skipped.total,
        written_samples=sum(entry.samples for entry in buckets.values()),
        written_shards=len(todo),
        written_bytes=sum(entry.bytes for entry in buckets.values()),
        kept_shards=kept_shards,
        dry_run=dry_run,
        existing_shards=existing_shards,
        free_bytes=free_bytes,
        output_dir=output_dir,
        seconds=seconds,
        skipped_by_reason=dict(found.skipped),
        buckets=buckets,
    )


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; give 1 or more")


def _bucket_names(given: Iterable[str]) -> frozenset[str]:
    names = frozenset([given] if isinstance(given, str) else given)
    for name in names:
        if not is_bucket(name):
            raise UsageError(f"--bucket {name}: not a bucket; write WIDTHxHEIGHT, such as 832x1216")
    return names


def _require_samples(only: frozenset[str], found: Scan) -> None:
    """Take a bucket that is neither one of the seven nor in the store for a slip of the pen."""
    present = {found.buckets[sample] for sample in found.ready()} if only else set()
    for name in sorted(only - present - {str(bucket) for bucket in BUCKETS}):
        listed = ", ".join(sorted(present)) or "none"
        raise UsageError(f"--bucket {name}: no ready sample is in it; buckets with some: {listed}")
