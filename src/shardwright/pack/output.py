"""The output folder while it is packed: what is there already, and how shards take their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path

from shardwright import files
from shardwright.errors import NoSpaceError, ShardExistsError
from shardwright.pack.plan import Plan
from shardwright.pack.write import Sealed, make_task, write_shard
from shardwright.progress import Progress, size
from shardwright.shards.names import bucket_folder, existing_buckets, existing_shards, leftovers
from shardwright.workers import run


def existing(plan: Plan, output: Path) -> list[Path]:
    """Find the shards that are already there in the buckets to be written."""
    return [
        path
        for bucket in plan.buckets
        for path in existing_shards(output / bucket_folder(bucket)).values()
    ]


def refuse(existing: list[Path]) -> None:
    """Raise if there are shards already."""
    if existing:
        raise ShardExistsError(
            f"{existing[0]}: already exists, and nothing was written; give --overwrite to replace "
            "the shards of its bucket, or choose another --output-dir"
        )


def require_space(plan: Plan, output: Path) -> None:
    """Raise if the shards do not fit on the disk."""
    free = files.free_bytes(output)
    if plan.bytes > free:
        raise NoSpaceError(
            f"{output}: the shards need {size(plan.bytes)} and the disk has {size(free)} free; "
            "make room, or pack fewer with --limit or --bucket"
        )


def write(plan: Plan, output: Path, workers: int, progress: Progress) -> None:
    """Write and publish the planned shards.

    A new bucket's shards appear one by one. Where a bucket has old shards, the new ones wait under
    their temporary names until all are whole; then they take the old ones' places, and old shards
    with higher numbers go.
    """
    _remove(_leftovers(output))
    remaining: dict[str, int] = {}
    for shard in plan.shards:
        remaining[shard.bucket] = remaining.get(shard.bucket, 0) + 1
    old = {bucket: existing_shards(output / bucket_folder(bucket)) for bucket in remaining}
    held: dict[str, list[Sealed]] = {bucket: [] for bucket in remaining}
    for bucket in remaining:
        files.make_folder(output / bucket_folder(bucket))
    progress.phase("write", plan.bytes, "B")
    tasks = (make_task(plan, shard, output) for shard in plan.shards)
    try:
        with closing(run(write_shard, tasks, min(workers, len(plan.shards)))) as messages:
            for message in messages:
                if isinstance(message, int):
                    progress.advance(message)
                    continue
                bucket = message.bucket
                held[bucket].append(message)
                remaining[bucket] -= 1
                if not old[bucket] or not remaining[bucket]:
                    stale = set(old[bucket].values()) - {sealed.path for sealed in held[bucket]}
                    _publish(held[bucket], stale, output / bucket_folder(bucket))
                    held[bucket].clear()
                done = len(plan.shards) - sum(remaining.values())
                name = f"{message.path.parent.name}/{message.path.name}"
                progress.note(f"{name} {message.samples} samples, {done}/{len(plan.shards)} shards")
    except BaseException:
        _remove(_leftovers(output))
        raise


def remove_other_buckets(output: Path, keep: Collection[str]) -> None:
    """Remove the shards of buckets that a full repack no longer has samples for."""
    for bucket in set(existing_buckets(output)) - set(keep):
        folder = output / bucket_folder(bucket)
        if shards := existing_shards(folder):
            _remove(shards.values())
            files.sync_folder(folder)


def _publish(sealed: Iterable[Sealed], stale: Iterable[Path], folder: Path) -> None:
    for shard in sealed:
        files.publish(shard.tmp, shard.path)
    _remove(stale)
    files.sync_folder(folder)


def _leftovers(output: Path) -> list[Path]:
    return [
        path
        for bucket in existing_buckets(output)
        for path in leftovers(output / bucket_folder(bucket))
    ]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        files.remove(path)
