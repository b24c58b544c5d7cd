"""Stage 3: a store of arrays to WebDataset tar shards, by scan, plan and write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from shardwright import files
from shardwright.buckets import BUCKETS, is_bucket
from shardwright.errors import UsageError
from shardwright.pack import output
from shardwright.pack.plan import Plan, plan
from shardwright.pack.scan import Scan, scan
from shardwright.pack.summary import BucketSummary, PackSummary, SkippedReason
from shardwright.progress import Progress
from shardwright.schema import JSONL_NAME
from shardwright.workers import cores

__all__ = ["BucketSummary", "PackSummary", "SkippedReason", "pack"]

StrPath = str | os.PathLike[str]


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
    dry_run: bool = False,
    progress_every: int = 500,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack the ready samples of a store into tar shards, one folder per aspect bucket.

    Arguments are named as the flags of ``shardwright pack``. Raises ShardExistsError (a
    FileExistsError) before anything is written if a bucket already has shards, unless
    ``overwrite``; InputMissingError (a FileNotFoundError) if the store is not there.
    """
    started = time.monotonic()
    _require_positive(shard_size=shard_size, progress_every=progress_every)
    if limit is not None and limit < 0:
        raise UsageError(f"--limit is {limit}; it counts samples, so give 0 or more")
    workers = cores() if workers is None else workers
    _require_positive(workers=workers)
    only = _bucket_names(bucket)
    derived, target = Path(derived_dir), Path(output_dir)
    report = progress or Progress()
    try:
        found = scan(
            Path(jsonl) if jsonl is not None else derived / JSONL_NAME,
            derived,
            report,
            progress_every,
        )
        _require_samples(only, found)
        layout = plan(
            found,
            buckets=only,
            shuffle=shuffle,
            seed=seed,
            limit=limit,
            shard_size=shard_size,
            workers=workers,
            progress=report,
        )
        existing = output.existing(layout, target)
        if layout.shards and not dry_run:
            if not overwrite:
                output.refuse(existing)
            output.require_space(layout, target)
            with files.lock(target):
                if not overwrite:  # once more, now that nobody else can be writing
                    output.refuse(output.existing(layout, target))
                output.write(layout, target, workers, report)
                if overwrite and not only:
                    output.remove_other_buckets(target, keep=layout.buckets)
    finally:
        report.close()
    return _summary(layout, target, dry_run, len(existing), time.monotonic() - started)


def _summary(
    layout: Plan, target: Path, dry_run: bool, existing: int, seconds: float
) -> PackSummary:
    found = layout.scan
    buckets: dict[str, BucketSummary] = {}
    for shard in layout.shards:
        entry = buckets.setdefault(shard.bucket, BucketSummary())
        entry.samples += len(shard.samples)
        entry.shards += 1
        entry.bytes += shard.bytes
        entry.shard_bytes.append(shard.bytes)
        entry.off_shape += sum(layout.off_shape[sample] for sample in shard.samples)
    return PackSummary(
        total_records=found.total_records,
        ready_records=found.ready_records,
        skipped_incomplete=found.skipped.total,
        written_samples=sum(entry.samples for entry in buckets.values()),
        written_shards=len(layout.shards),
        written_bytes=layout.bytes,
        dry_run=dry_run,
        existing_shards=existing,
        free_bytes=files.free_bytes(target),
        output_dir=str(target),
        seconds=round(seconds, 3),
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
