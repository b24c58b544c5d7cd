"""Which packed samples are no longer what the store holds.

No shard is read, because its index has the size and checksum of every member. A record is compared
by the checksums of the members that would be written now, an array by its size, and by its bytes
only if its file is newer than the shard. So if shards are copied without their times, a change of
an array may stay hidden here; ``verify --against`` reads every byte.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from shardwright.engine import Engine
from shardwright.interrupts import check
from shardwright.packing.scan import Part, Scan
from shardwright.packing.summary import Skipped
from shardwright.progress import Progress
from shardwright.recipes import JSON_SUFFIX, Component, Recipe
from shardwright.shards.format import index
from shardwright.shards.format.index import Member
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.storage.files import explained
from shardwright.store import npy, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, is_image_id
from shardwright.store.rules import Rules
from shardwright.store.store import Store

_CHUNK = 1 << 20  # bytes hashed at a time


@dataclass(frozen=True)
class Packed:
    """A packed shard; ``replaced`` if an interrupted run may have replaced it already."""

    entry: ShardEntry
    ids: Sequence[str]
    replaced: bool = False


@dataclass(frozen=True)
class Compared:
    """A packed shard, and those of its samples that stay in it, by their position in the scan."""

    entry: ShardEntry
    samples: array[int]
    outdated: bool  # a sample has changed or does not stay


@dataclass
class Comparison:
    """Packed shards, compared with a store; the counts are of samples, by reason."""

    shards: list[Compared] = field(default_factory=list)
    changed: Skipped = field(default_factory=Skipped)
    removed: Skipped = field(default_factory=Skipped)
    not_ready: Skipped = field(default_factory=Skipped)

    @property
    def outdated(self) -> int:
        """Count the samples that have changed or are removed."""
        return self.changed.total + self.removed.total


def newer(source: os.stat_result, shard: os.stat_result) -> bool:
    """Whether a file may have been written after a shard; times of one tick may be equal."""
    return source.st_mtime_ns >= shard.st_mtime_ns or source.st_ctime_ns >= shard.st_ctime_ns


def compare(
    output: Path,
    packed: Sequence[Packed],
    found: Scan,
    selected: Collection[int] | None,
    engine: Engine,
    progress: Progress,
    lists: Callable[[str], bool] = lambda name: True,
) -> Comparison:
    """Compare every packed sample with the store; ``selected`` are asked for, if not all are.

    Of those that are not ready, only the id is known: whether it is in the ``lists`` asked for.
    """
    places = {found.ids[sample]: sample for sample in found.ready()}
    absent = {name for shard in packed for name in shard.ids if name not in places}
    reasons = _not_ready(found.store, absent) if absent else {}
    progress.phase("compare", len(packed), "shards")
    differing: dict[str, Mapping[str, str]] = {}
    tasks = (
        _Task(output, shard.entry.path, found.part([places[i] for i in shard.ids if i in places]))
        for shard in packed
        if not shard.replaced and not absent.issuperset(shard.ids)
    )
    with closing(engine.run(_compare, tasks)) as results:
        for path, changed in results:
            differing[path] = changed
            progress.advance(1)
    result = Comparison()
    for shard in packed:
        check()
        bucket, changes = shard.entry.bucket, differing.get(shard.entry.path, {})
        stay = array("Q")
        for name in shard.ids:
            sample = places.get(name)
            if sample is None:
                if name not in reasons:
                    result.removed.add("record_gone", name)
                elif lists(name):
                    result.not_ready.add(reasons[name], name)
                else:
                    result.removed.add("not_selected", name)
            elif selected is not None and sample not in selected:
                result.removed.add("not_selected", name)
            elif found.buckets[sample] != bucket:
                result.changed.add("aspect_bucket", name)
            else:
                stay.append(sample)
                if name in changes:
                    result.changed.add(changes[name], name)
        outdated = shard.replaced or bool(changes) or len(stay) < len(shard.ids)
        result.shards.append(Compared(shard.entry, stay, outdated))
    return result


def _not_ready(store: Store, absent: Collection[str]) -> dict[str, str]:
    """Find the records of samples that are not ready, and why they are not."""
    rules, found = Rules(store.recipe), dict[str, str]()
    for _, record in records.walk(store.jsonl, records.parse):
        image_id = record.get("image_id")
        if not is_image_id(image_id) or image_id not in absent:
            continue
        missing = (
            f"{row.name}_missing"
            for row in store.recipe.components
            if not os.path.lexists(store.array(row, image_id))
        )
        found[image_id] = rules.problem(record) or next(missing, "duplicate_id")
    return found


class _Task(NamedTuple):
    output: Path
    path: str
    samples: Part


def _compare(task: _Task) -> Iterator[tuple[str, dict[str, str]]]:
    """Compare one shard; give what differs, by sample."""
    shard, path = index.load(task.output, task.path), task.output / task.path
    with explained(path):
        written = path.stat()
    numbers = {name: number for number, name in enumerate(shard.head.ids)}
    recipe, changes = task.samples.store.recipe, {}
    with ExitStack() as stack:
        folders = task.samples.folders(stack)
        for name, line in task.samples.lines():
            members = {
                suffix: shard.member(numbers[name], column)
                for column, suffix in enumerate(shard.head.members)
            }
            change = _other_record(line, members, recipe) or next(
                _other_arrays(name, members, folders, written), None
            )
            if change is not None:
                changes[name] = change
    yield task.path, changes


def _other_record(line: bytes, members: Mapping[str, Member], recipe: Recipe) -> str | None:
    try:
        record = records.parse(line)
        now = {mask.suffix: mask_member(record, mask) for mask in recipe.masks}
        now[JSON_SUFFIX] = json_member(record, recipe)
    except BadRecordError:  # found out when it is packed
        return "record"
    same = all(
        suffix in members and members[suffix].xxh3 == xxhash.xxh3_64_intdigest(data)
        for suffix, data in now.items()
    )
    return None if same else "record"


def _other_arrays(
    image_id: str,
    members: Mapping[str, Member],
    folders: Sequence[tuple[Component, int]],
    written: os.stat_result,
) -> Iterator[str]:
    for component, folder in folders:
        member, name = members.get(component.suffix), image_id + component.extension
        try:
            there = os.stat(name, dir_fd=folder)
            same = member is not None and there.st_size == member.size
            if same and newer(there, written):
                same = member is not None and _checksum(name, folder) == member.xxh3
        except (OSError, BadArrayError):  # found out when it is packed
            same = False
        if not same:
            yield component.name


def _checksum(name: str, folder: int) -> int:
    hasher, fd = xxhash.xxh3_64(), npy.open_array(name, folder)
    with open(fd, "rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            check()
            hasher.update(data)
    return hasher.intdigest()
