"""The output folder: what is there already, how new shards get their names, and the manifest."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

import msgspec
from msgspec import UNSET

from shardwright.engine import Engine
from shardwright.errors import (
    NoSpaceError,
    ShardExistsError,
    ShardwrightError,
    SourceChangedError,
    StorageError,
)
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.packing import known
from shardwright.packing.plan import Plan, Shard
from shardwright.packing.start import existing
from shardwright.packing.write import entry_of, make_task, write_shard
from shardwright.progress import Progress, quantity, size
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import index, manifest, records
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry, Unfinished
from shardwright.shards.format.names import bucket_folder, existing_buckets, leftovers
from shardwright.storage import files
from shardwright.storage.local import LocalStorage
from shardwright.store.provenance import Entry
from shardwright.version import __version__


def refuse(output: Path, found: Sequence[Path], only: Collection[str]) -> None:
    """Raise if there are shards already; ``only`` are the buckets asked for, if not all are."""
    if not found:
        return
    unfinished = manifest.load_unfinished(output) is not None
    resume = "--resume to finish the interrupted run, " if unfinished else ""
    overwrite, where = "--overwrite", f"in {output}"
    buckets = existing_buckets(output)
    if only and all(path.parent.name in map(bucket_folder, only) for path in found):
        where, buckets = f"of {', '.join(sorted(only))}", sorted(only)
    elif only:
        overwrite = "--overwrite without --bucket"
    count = len(existing(output, buckets))
    which = f"all {count:,} shards" if count > 1 else "the 1 shard"
    raise ShardExistsError(
        "already exists, so nothing was written",
        path=found[0],
        fix=f"give {resume}{overwrite}, which removes {which} {where} once the new ones are "
        "complete, or another --output-dir",
    )


def finished(output: Path, plan: Plan) -> dict[str, ShardEntry]:
    """Find the planned shards that are already there, complete and with the planned samples."""
    entries = (_finished(output, plan, shard) for shard in plan.shards)
    return {entry.path: entry for entry in entries if entry is not None}


def _finished(output: Path, plan: Plan, shard: Shard) -> ShardEntry | None:
    check()
    path = output / index.index_name(shard.path)
    try:
        data = path.read_bytes()
        head = index.decode(data, path).head
        # An earlier version wrote no such file, and then the shard has none.
        beside = records.checksum(output, shard.path) if head.records_xxh3 else None
        there = (output / shard.path).stat()
        store, ids = plan.scan.store, [plan.scan.ids[sample] for sample in shard.samples]
        paths = (store.array(row, image_id) for image_id in ids for row in store.recipe.components)
        recomputed = max(os.stat(path).st_ctime_ns for path in paths) > there.st_ctime_ns
    except (OSError, ShardwrightError):
        return None
    planned = (ids, shard.path, shard.bytes, shard.bytes)
    if recomputed or beside != head.records_xxh3:
        return None
    if (head.ids, head.shard, head.bytes, there.st_size) != planned:
        return None
    return entry_of(shard.bucket, head, data)


def write(
    plan: Plan,
    shards: Sequence[Shard],
    output: Path,
    *,
    prefix: str,
    replaced: Collection[str],
    keep: Collection[str],
    way: str,
    sha256: bool,
    engine: Engine,
    progress: Progress,
) -> list[ShardEntry]:
    """Write and publish some shards of a plan; ``prefix`` is before their names in reports.

    ``way`` is the flag that packs them again if the store has changed.

    A new bucket's shards appear one by one. In a bucket whose old shards are ``replaced``, the new
    ones keep their temporary names until all are complete. Then the manifest, which lists the old
    ones, is removed, the new ones get their names, and the remaining old ones are removed, except
    those to ``keep``.
    """
    remove_leftovers(output)
    remaining = Counter(shard.bucket for shard in shards)
    for bucket in remaining:
        for folder in _folders(output, bucket):
            files.make_folder(folder)
    progress.phase("write", sum(shard.bytes for shard in shards), "B")
    entries: list[ShardEntry] = []
    held: dict[str, list[ShardEntry]] = {bucket: [] for bucket in remaining}
    facts = known.Places(plan.scan, (sample for shard in shards for sample in shard.samples))
    tasks = (make_task(plan, shard, facts, LocalStorage(output), sha256) for shard in shards)
    try:
        with closing(engine.run(write_shard, tasks)) as messages:
            for message in messages:
                if isinstance(message, int):
                    progress.advance(message)
                    continue
                bucket = message.bucket
                held[bucket].append(message)
                remaining[bucket] -= 1
                if bucket not in replaced or not remaining[bucket]:
                    if bucket in replaced:
                        manifest.remove_manifest(output)
                    _publish(output, bucket, held[bucket], keep if bucket in replaced else None)
                    held[bucket].clear()
                entries.append(message)
                progress.note(
                    f"{prefix}{message.path} {quantity(message.samples, 'samples')}, "
                    f"{len(entries)}/{quantity(len(shards), 'shards')}"
                )
    except BaseException as error:
        with suppress(StorageError):  # the error that brought us here is the one to report
            remove_leftovers(output)
        if isinstance(error, NoSpaceError):
            done = sum(entry.bytes for entry in entries)
            needed = size(sum(shard.bytes for shard in shards) - done)
            what = f"{error.what}, and the remaining shards need {needed}"
            kept = "" if replaced else ", which keeps the finished shards"
            fix = f"make room and pack again with --resume{kept}"
            raise NoSpaceError(what, path=error.path, fix=fix) from error
        if isinstance(error, SourceChangedError):
            fix = f"pack again with --resume, or if that is refused with {way}"
            raise SourceChangedError(error.what, path=error.path, fix=fix) from error
        raise
    return entries


def _publish(
    output: Path, bucket: str, sealed: Sequence[ShardEntry], keep: Collection[str] | None
) -> None:
    """Give sealed shards their names; remove the others of the bucket, if it has some to keep."""
    for entry in sealed:
        for name in (*_beside(entry.path), entry.path):
            LocalStorage(output).publish(name)
    if keep is not None:
        remove_shards(output, bucket, keep={*keep, *(entry.path for entry in sealed)})
    for folder in _folders(output, bucket):
        files.sync_folder(folder)


def remove_shards(output: Path, bucket: str, keep: Iterable[str] = ()) -> None:
    """Remove the shards of a bucket, with their indexes and records."""
    kept = {output / path for path in keep}
    for path in existing(output, [bucket]):
        if path not in kept:
            files.remove(path)
            for name in _beside(f"{path.parent.name}/{path.name}"):
                files.remove(output / name)


def _beside(shard: str) -> tuple[str, str]:
    """Name the files that a shard has in the state folder."""
    return records.records_name(shard), index.index_name(shard)


def remove_empty_buckets(output: Path) -> None:
    """Remove the folders of buckets without shards."""
    for bucket in existing_buckets(output):
        if not existing(output, [bucket]):
            for folder in _folders(output, bucket):
                files.remove_empty_folders(folder)


def make_durable(output: Path) -> None:
    """Make every name in the folder durable, also those that a killed run did not sync."""
    for folder in (output, output / STATE_FOLDER / index.INDEX_FOLDER):
        files.sync_folder(folder)
    files.sync_parent(output)
    for bucket in existing_buckets(output):
        for folder in _folders(output, bucket):
            if folder.is_dir():
                files.sync_folder(folder)


def remove_leftovers(output: Path) -> None:
    """Remove what a killed run left half written, and indexes and records without their shard."""
    for bucket in existing_buckets(output):
        indexes, shards = _folders(output, bucket)
        complete = {path.stem for path in existing(output, [bucket])}
        suffixes = (index.INDEX_SUFFIX, records.RECORDS_SUFFIX)
        found = sorted(path for suffix in suffixes for path in indexes.glob("*" + suffix))
        lone = [path for path in found if path.stem not in complete]
        for path in (*leftovers(indexes), *leftovers(shards), *lone):
            files.remove(path)


def _folders(output: Path, bucket: str) -> tuple[Path, Path]:
    """Give the folders of a bucket's indexes and records, and of its shards."""
    name = bucket_folder(bucket)
    return output / STATE_FOLDER / index.INDEX_FOLDER / name, output / name


def finish(
    output: Path,
    plan: Plan,
    begun: Unfinished,
    entries: Sequence[ShardEntry],
    made: Mapping[str, Entry],
    empty: dict[str, str],
    sha256: bool,
) -> None:
    """Publish the manifest, which ends a run.

    ``made`` is how the store's arrays were made, ``empty`` the checksums of the empty caption.
    """
    base = begun.base or Manifest(runs=[], shards=[])
    runs, shards = base.runs, base.shards
    if entries or begun.sync:  # the next sync takes its settings
        run = Run(
            tool=f"shardwright {__version__}",
            append=begun.append,
            settings=begun.settings,
            plan=begun.plan,
            total_records=plan.scan.total_records,
            ready_records=plan.ready_records,
            skipped_incomplete=plan.skipped.total,
            skipped_by_reason={name: asdict(reason) for name, reason in plan.skipped.items()},
            samples=sum(len(shard.samples) for shard in plan.shards),
            shards=len(plan.shards),
            provenance={"components": msgspec.to_builtins(made, order="sorted")} if made else None,
            jsonl=begun.jsonl,
            parts=begun.parts,
            sync=True if begun.sync else UNSET,
        )
        new = (msgspec.structs.replace(entry, run=len(runs)) for entry in entries)
        runs, shards = [*runs, run], [*shards, *new]
    shards = sorted(shards, key=lambda entry: entry.path)
    if sha256:
        shards = [_with_sha256(entry, output) for entry in shards]
    if not runs:  # no sample is left here
        manifest.remove_manifest(output)
        files.withdraw(output / STATE_FOLDER / manifest.SHA256_NAME)
        manifest.remove_unfinished(output)
        return
    recipe = plan.scan.store.recipe
    done = Manifest(
        runs=runs,
        shards=shards,
        recipe=UNSET if recipe == SPECIFICATION else recipe,
        empty=empty or UNSET,
    )
    manifest.save_sha256(output, done)
    manifest.save_manifest(output, done)
    manifest.remove_unfinished(output)


def _with_sha256(entry: ShardEntry, output: Path) -> ShardEntry:
    """Read a shard that was packed without --sha256 for its digest."""
    if entry.sha256 is not None:
        return entry
    hasher = hashlib.sha256()
    with (output / entry.path).open("rb") as file:
        while data := file.read(1 << 20):
            check()
            hasher.update(data)
    return msgspec.structs.replace(entry, sha256=hasher.hexdigest())
