"""The output folder: what is there already, how new shards get their names, and the manifest."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict

import msgspec
import xxhash
from msgspec import UNSET

from shardwright.engine import Engine
from shardwright.errors import (
    DamageError,
    NoSpaceError,
    ShardExistsError,
    SourceChangedError,
    StorageError,
)
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.packing.jobs import Job
from shardwright.packing.plan import Shard
from shardwright.packing.start import existing
from shardwright.packing.write import ShardToWrite, write_shard
from shardwright.progress import Milestones, Progress, quantity, size
from shardwright.recipes import SPECIFICATION, Recipe
from shardwright.shards.format import index, manifest, records
from shardwright.shards.format.empty import empty_faults, empty_folder, empty_members
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry, Unfinished
from shardwright.shards.format.moving import remove_stage
from shardwright.shards.format.names import bucket_folder, existing_buckets, leftovers
from shardwright.shards.format.writer import names_of, publish
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, local, names
from shardwright.store import commands
from shardwright.store.provenance import Entry
from shardwright.store.store import Store
from shardwright.summary import Count
from shardwright.version import __version__

_CHUNK = 1 << 20


def refuse(output: Location, found: Sequence[Location], only: Collection[str]) -> None:
    """Raise if there are shards already; ``only`` are the buckets asked for, if not all are."""
    if not found:
        return
    ways = ["--resume to finish the interrupted run"] * bool(manifest.load_unfinished(output))
    if place_at(output).can_replace:
        beyond = {path.parent.name for path in found}.difference(map(bucket_folder, only))
        buckets = existing_buckets(output) if beyond else sorted(only)
        where = f"in {output}" if beyond else f"of {', '.join(buckets)}"
        count = len(existing(output, buckets))
        which = f"all {count:,} shards" if count > 1 else "the 1 shard"
        way = "--overwrite without --bucket" if only and beyond else "--overwrite"
        ways.append(f"{way}, which removes {which} {where} once the new ones are complete")
    another = "or another --output-dir" if ways else "another --output-dir"
    fix = f"give {', '.join([*ways, another])}"
    raise ShardExistsError("already exists, so nothing was written", path=found[0], fix=fix)


def write(job: Job, *, sha256: bool, engine: Engine, progress: Progress) -> list[ShardEntry]:
    """Write and publish the shards that a job has to write.

    A new bucket's shards appear one by one. In a bucket whose old shards are replaced, the new ones
    keep their temporary names until all are complete. Then the manifest, which lists the old ones,
    is removed, the new ones get their names, and the remaining old ones are removed, except those
    that stay.
    """
    plan, shards, output = job.layout, job.todo, job.folder
    replaced, keep = job.start.replaced, job.stay
    place = place_at(output)
    remove_leftovers(output)
    if place.can_replace:
        remove_stage(local(output))
    remaining = Counter(shard.bucket for shard in shards)
    for bucket in remaining:
        for folder in _folders(output, bucket):
            files.make_folder(folder)
    progress.phase("write", sum(shard.bytes for shard in shards), "B")
    entries, milestones = list[ShardEntry](), Milestones(len(shards))
    etags: dict[str, str] = {}
    given: dict[str, Shard] = {}  # tasks that were given to workers, and are not done
    held: dict[str, list[ShardEntry]] = {bucket: [] for bucket in remaining}
    facts = plan.scan.fact_places(sample for shard in shards for sample in shard.samples)

    def tasks() -> Iterator[ShardToWrite]:
        for shard in shards:
            given[shard.path] = shard
            sizes, times = array("Q"), array("q")
            for sample in shard.samples:
                sizes += plan.checked.sizes(sample)
                times += plan.checked.times(sample)
            samples = plan.scan.excerpt(shard.samples, facts)
            yield ShardToWrite(place, shard, samples, sizes, times, sha256)

    try:
        with closing(engine.run(write_shard, tasks())) as messages:
            for message in messages:
                if isinstance(message, int):
                    progress.advance(message)
                    continue
                entry, bucket = message.entry, message.entry.bucket
                etags |= message.etags
                del given[entry.path]
                held[bucket].append(entry)
                remaining[bucket] -= 1
                if bucket not in replaced or not remaining[bucket]:
                    if bucket in replaced:
                        manifest.remove_manifest(output)
                    _publish(output, bucket, held[bucket], keep if bucket in replaced else None)
                    held[bucket].clear()
                entries.append(entry)
                if milestones.reached(len(entries)):
                    progress.note(
                        f"{job.start.prefix}{entry.path} {quantity(entry.samples, 'samples')}, "
                        f"{len(entries)}/{quantity(len(shards), 'shards')}"
                    )
    except BaseException as error:
        with suppress(StorageError):  # the error that brought us here is the one to report
            if place.can_replace:
                remove_leftovers(output)
            elif not isinstance(error, StorageError):  # then it is within reach
                place.abandon({name for path in given for name in names_of(path)})
        if isinstance(error, NoSpaceError):
            needed = sum(shard.bytes for shard in shards) - sum(entry.bytes for entry in entries)
            what = f"{error.what}, and the remaining shards need {size(needed)}"
            kept = "" if replaced else ", which keeps the finished shards"
            fix = f"make room and run the same pack with --resume{kept}"
            raise NoSpaceError(what, path=error.path, fix=fix) from error
        if isinstance(error, SourceChangedError):
            fix = f"run the same pack with --resume, or if that is refused with {job.way}"
            raise SourceChangedError(error.what, path=error.path, fix=fix) from error
        raise
    _require_as_sent(output, entries, place.replaced(etags))
    return entries


def _require_as_sent(
    output: Location, entries: Sequence[ShardEntry], replaced: frozenset[str]
) -> None:
    """Raise if another run has replaced files that this one has sent."""
    others = [e.path for e in entries if not replaced.isdisjoint(names_of(e.path))]
    for path in others:
        files.remove(output / index.index_name(path))  # so that --resume writes the shard again
    if others:
        what, fix = "another run has written it too", "run the same pack with --resume"
        raise SourceChangedError(what, path=output / others[0], fix=fix)


def _publish(
    output: Location, bucket: str, sealed: Sequence[ShardEntry], keep: Collection[str] | None
) -> None:
    """Give sealed shards their names; remove the others of the bucket, if it has some to keep."""
    place = place_at(output)
    if not place.can_replace:  # then the worker has done it
        return
    for entry in sealed:
        publish(place, entry.path)
    if keep is not None:
        remove_shards(output, bucket, keep={*keep, *(entry.path for entry in sealed)})
    for folder in _folders(output, bucket):
        files.sync_folder(folder)


def remove_shards(output: Location, bucket: str, keep: Iterable[str] = ()) -> None:
    """Remove the shards of a bucket, with their indexes and records."""
    kept = {output / path for path in keep}
    for path in existing(output, [bucket]):
        if path not in kept:
            *beside, shard = names_of(f"{path.parent.name}/{path.name}")
            for name in (shard, *beside):
                files.remove(output / name)


def remove_empty_buckets(output: Location) -> None:
    """Remove the folders of buckets without shards."""
    for bucket in existing_buckets(output):
        if not existing(output, [bucket]):
            for folder in _folders(output, bucket):
                files.remove_empty_folders(folder)


def make_durable(output: Location) -> None:
    """Make every name in the folder durable, also those that a killed run did not sync."""
    if not place_at(output).can_replace:
        return
    below = [each for bucket in existing_buckets(output) for each in _folders(output, bucket)]
    for folder in (output, output / STATE_FOLDER / index.INDEX_FOLDER, *below):
        if folder.is_dir():
            files.sync_folder(folder)
    files.sync_parent(output)


def remove_leftovers(output: Location) -> None:
    """Remove what a killed run left half written, and indexes and records without their shard."""
    place = place_at(output)
    if not place.can_replace:  # then others may be at work
        with suppress(StorageError):  # it may not be allowed, and nothing depends on it
            place.abandon()
        return
    for bucket in existing_buckets(output):
        indexes, shards = _folders(output, bucket)
        complete = {os.path.splitext(path.name)[0] for path in existing(output, [bucket])}
        suffixes = (index.INDEX_SUFFIX, records.RECORDS_SUFFIX)
        found = [name for name in names(indexes) if name.endswith(suffixes)]
        lone = [indexes / name for name in found if os.path.splitext(name)[0] not in complete]
        for path in (*leftovers(indexes), *leftovers(shards), *lone):
            files.remove(path)


def _folders(output: Location, bucket: str) -> tuple[Location, Location]:
    """Give the folders of a bucket's indexes and records, and of its shards."""
    name = bucket_folder(bucket)
    return output / STATE_FOLDER / index.INDEX_FOLDER / name, output / name


def read_empty(store: Store) -> dict[str, bytes]:
    """Read what a store has for the empty caption, by suffix; raise if it is damaged."""
    members = empty_members(store.recipe)
    found = files.read_existing({suffix: store.empty(suffix) for suffix in members})
    for suffix, what in empty_faults(found, store.recipe):
        fix = f"delete it and run {commands.derive(store)}"
        raise DamageError(f"is damaged ({what})", path=store.empty(suffix), fix=fix)
    return found


def _publish_empty(output: Location, base: Manifest, wanted: Mapping[str, bytes]) -> dict[str, str]:
    """Put the empty caption beside the shards; give the checksums for the manifest.

    That of shards that stay is kept, and only what is missing is added.
    """
    folder = empty_folder(output)
    there = files.read_existing({name: folder / name for name in names(folder)})
    listed = base.empties() if base.shards else {}
    kept = {name: data for name, data in there.items() if listed.get(name) == _checksum(data)}
    new = {**wanted, **kept}
    if any(new.get(name) != data for name, data in there.items()):
        manifest.remove_manifest(output)  # it may list what is replaced now
    for name in there.keys() - new.keys():
        files.remove(folder / name)
    for name, data in new.items():
        if there.get(name) != data:
            files.make_folder(folder)
            files.write(folder / name, data)
    if new:
        files.sync_folder(folder)  # also what a killed run did not sync
    else:
        files.remove_empty_folders(folder)
    return {name: _checksum(new[name]) for name in sorted(new)}


def _checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def run_of(
    note: Unfinished,
    total: int,
    skipped: Mapping[str, Count],
    entries: Sequence[ShardEntry],
    made: Mapping[str, Entry],
) -> Run:
    """Give the entry of a run in the manifest, with how its arrays were ``made``."""
    left = sum(count.count for count in skipped.values())
    # Without the component, because the manifest has the recipe.
    entry = {name: msgspec.structs.replace(each, component=None) for name, each in made.items()}
    return Run(
        tool=f"shardwright {__version__}",
        append=note.append,
        settings=note.settings,
        plan=note.plan,
        total_records=total,
        ready_records=total - left,
        skipped_incomplete=left,
        skipped_by_reason={name: asdict(count) for name, count in skipped.items()},
        samples=sum(entry.samples for entry in entries),
        shards=len(entries),
        provenance={"components": msgspec.to_builtins(entry, order="sorted")} if made else None,
        jsonl=note.jsonl,
        store_id=note.store_id,
        parts=note.parts,
        sync=True if note.sync else UNSET,
        build=note.build,
    )


def finish(
    output: Location,
    base: Manifest,
    run: Run,
    entries: Sequence[ShardEntry],
    recipe: Recipe,
    empties: Mapping[str, bytes],
    *,
    sha256: bool,
) -> None:
    """Publish the manifest of shards that have their names, which ends a run.

    ``empties`` is the empty caption, by the suffix of its members.
    """
    runs, shards = base.runs, base.shards
    if entries or run.sync:  # the next sync takes its settings
        new = (msgspec.structs.replace(entry, run=len(runs)) for entry in entries)
        runs, shards = [*runs, run], [*shards, *new]
    checksums = _publish_empty(output, base, empties if shards else {})
    make_durable(output)  # before the manifest lists them
    if runs:
        shards = sorted(shards, key=lambda entry: entry.path)
        done = Manifest(
            runs=runs,
            shards=[_with_sha256(entry, output) for entry in shards] if sha256 else shards,
            recipe=UNSET if recipe == SPECIFICATION else recipe,
            empty=checksums or UNSET,
        )
        manifest.save_sha256(output, done)
        manifest.save_manifest(output, done)
    else:  # no sample is left here
        manifest.remove_manifest(output)
        files.withdraw(output / STATE_FOLDER / manifest.SHA256_NAME)


def _with_sha256(entry: ShardEntry, output: Location) -> ShardEntry:
    """Read a shard that was packed without --sha256 for its digest."""
    if entry.sha256 is not None:
        return entry
    hasher = hashlib.sha256()
    with place_at(output).open(entry.path) as file:
        for start in range(0, file.size, _CHUNK):
            check()
            hasher.update(file.pread(start, _CHUNK))
    return msgspec.structs.replace(entry, sha256=hasher.hexdigest())
