"""Which packed samples are no longer what the store holds, and how ``--sync`` follows it.

No shard is read, because its index has the size and checksum of every member. A record is compared
by the checksums of the members that would be written now, an array by its size, and by its bytes
only if its file is newer than the shard. So if shards are copied without their times, a change of
an array may stay hidden here; ``verify --against`` reads every byte.

Only shards with changed or removed samples are written again, from the store and under the same
number; what is new goes to new shards. If a shard becomes empty, the last one of its bucket takes
its number, so that numbers have no gaps.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial

import xxhash

from shardwright.engine import Engine
from shardwright.errors import OutdatedError, UsageError
from shardwright.interrupts import check
from shardwright.packing.again import jsonl_name
from shardwright.packing.choice import Choice
from shardwright.packing.plan import Again, Checked, Packed, reasons, require_ready
from shardwright.packing.scan import Excerpt, Scan, missing_array
from shardwright.packing.select import Selected
from shardwright.packing.start import Start, restricted
from shardwright.packing.summary import Counts
from shardwright.progress import Progress, quantity
from shardwright.recipes import JSON_SUFFIX, Recipe
from shardwright.shards.format import index
from shardwright.shards.format.manifest import Run
from shardwright.shards.format.names import shard_number
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.storage.files import explained
from shardwright.storage.objects import Object
from shardwright.storage.urls import Location
from shardwright.store import commands, npy, records
from shardwright.store.faults import Rules
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, is_image_id
from shardwright.store.store import Store

SPLIT = "split"  # why a sample moves to another part


@dataclass(frozen=True)
class Compared:
    """A packed shard with what differs, and those of its samples that stay in it."""

    shard: Packed
    samples: array[int]  # by their position in the scan
    outdated: bool  # a sample has changed or does not stay


@dataclass
class Comparison:
    """Packed shards, compared with a store; the counts are of samples, by reason."""

    shards: list[Compared] = field(default_factory=list)
    changed: Counts = field(default_factory=Counts)
    removed: Counts = field(default_factory=Counts)
    not_ready: Counts = field(default_factory=Counts)
    moved: dict[int, str] = field(default_factory=dict)  # changed samples that go elsewhere: why

    @property
    def outdated(self) -> int:
        """Count the samples that have changed or are removed."""
        return self.changed.total + self.removed.total

    def add(self, other: Comparison) -> None:
        """Add what is of another folder."""
        self.shards += other.shards
        self.moved |= other.moved
        self.changed.merge(other.changed)
        self.removed.merge(other.removed)


def newer(source: os.stat_result, shard: os.stat_result | Object, moved: bool = True) -> bool:
    """Whether a file may have been written, or moved there, after a shard.

    Times of one tick may be equal. An update that was begun before the shard was packed is moved
    into the store after it, which only the ctime shows; a copy or chmod changes that too.
    """
    if source.st_mtime_ns >= shard.st_mtime_ns:
        return True
    return moved and source.st_ctime_ns >= shard.st_ctime_ns


def of_jsonl(name: str, packed: Iterable[Packed], runs: Sequence[Run]) -> list[Packed]:
    """Give the shards that were packed from a JSONL; those of a build are from none."""
    return [shard for shard in packed if runs[shard.entry.run].jsonl == name]


def compare(
    output: Location,
    packed: Sequence[Packed],
    found: Scan,
    stays: Callable[[int], bool],
    engine: Engine,
    progress: Progress,
    *,
    lists: Callable[[str], bool] = lambda name: True,
    elsewhere: Callable[[int], bool] = lambda sample: False,
    moved: bool = True,
) -> Comparison:
    """Compare every packed sample with the store; one that is not asked for does not stay.

    It may be asked for ``elsewhere``, in another part of a split. Of those that are not ready, only
    the id is known: whether it is in the ``lists`` asked for. Arrays are read that are newer than
    their shard, or, if ``moved``, were moved there later.
    """
    places = {found.ids[sample]: sample for sample in found.ready()}
    absent = {name for shard in packed for name in shard.ids if name not in places}
    reasons = _not_ready(found.store, absent) if absent else {}
    progress.phase("compare", len(packed), "shards")
    differing: dict[str, Mapping[str, str]] = {}
    read = 0
    tasks = (
        (shard.entry.path, found.excerpt([places[i] for i in shard.ids if i in places]))
        for shard in packed
        if not shard.replaced and not absent.issuperset(shard.ids)
    )
    with closing(engine.run(partial(_compare, output, moved), tasks)) as results:
        for path, changed, arrays in results:
            differing[path] = changed
            read += arrays
            progress.aside(f"{quantity(read, 'arrays')} read")
            progress.advance(1)
    if read:
        times = "times of their files are" if read > 1 else "time of its file is"
        what = quantity(read, "arrays")
        progress.say(f"{output}: read {what}, because the {times} not before the shard's")
    result = Comparison()
    for shard in packed:
        check()
        bucket, changes = shard.entry.bucket, differing.get(shard.entry.path, shard.changes)
        stay = array("Q")
        for name in shard.ids:
            sample = places.get(name)
            if sample is None:
                if name in reasons and lists(name):
                    result.not_ready.add(reasons[name], name)
                else:
                    result.removed.add("not_selected" if name in reasons else "record_gone", name)
            elif not stays(sample) and not elsewhere(sample):
                result.removed.add("not_selected", name)
            elif not stays(sample) or found.buckets[sample] != bucket:
                why = result.moved[sample] = "aspect_bucket" if stays(sample) else SPLIT
                result.changed.add(why, name)
            else:
                stay.append(sample)
                if name in changes:
                    result.changed.add(changes[name], name)
        outdated = shard.replaced or bool(changes) or len(stay) < len(shard.ids)
        result.shards.append(Compared(replace(shard, changes=changes), stay, outdated))
    return result


def _not_ready(store: Store, absent: Collection[str]) -> dict[str, str]:
    """Find the records of samples that are not ready, and why they are not."""
    rules, found = Rules(store.recipe), dict[str, str]()
    for _, record in records.walk(store.jsonl, records.parse):
        image_id = record.get("image_id")
        if not is_image_id(image_id) or image_id not in absent:
            continue
        found[image_id] = rules.problem(record) or missing_array(store, image_id) or "duplicate_id"
    return found


def _compare(
    output: Location, moved: bool, task: tuple[str, Excerpt]
) -> Iterator[tuple[str, dict[str, str], int]]:
    """Compare one shard; give what differs, by sample, and how many arrays were read."""
    name, samples = task
    shard, path = index.load(output, name), output / name
    with explained(path):
        written = path.stat()
    members = len(shard.head.members)
    places = {name: number * members for number, name in enumerate(shard.head.ids)}
    sizes, checksums = shard.columns()
    columns = {suffix: column for column, suffix in enumerate(shard.head.members)}
    recipe = samples.store.recipe
    if not columns.keys() >= set(recipe.suffixes):  # packed by another recipe
        yield name, dict.fromkeys(samples.ids, "recipe"), 0
        return
    changes, read = {}, 0
    with ExitStack() as stack:
        folders = samples.folders(stack)
        for image_id, line in samples.lines():
            first = places[image_id]
            if any(
                checksums[first + columns[suffix]] != xxhash.xxh3_64_intdigest(data)
                for suffix, data in _from_record(line, recipe)
            ):
                changes[image_id] = "record"
                continue
            for component, folder in folders:
                member, file = first + columns[component.suffix], image_id + component.extension
                try:
                    there = os.stat(file, dir_fd=folder)
                    same = there.st_size == sizes[member]
                    if same and newer(there, written, moved):
                        read += 1
                        same = _checksum(file, folder) == checksums[member]
                except (OSError, BadArrayError):  # found out when it is packed
                    same = False
                if not same:
                    changes[image_id] = component.name
                    break
    yield name, changes, read


def _from_record(line: bytes, recipe: Recipe) -> Iterator[tuple[str, bytes]]:
    """Give the members that are made from a record, as they would be written now."""
    try:
        record = records.parse(line)
        for mask in recipe.masks:
            yield mask.suffix, mask_member(record, mask)
        yield JSON_SUFFIX, json_member(record, recipe)
    except BadRecordError:  # found out when it is packed
        yield JSON_SUFFIX, b""


def _checksum(name: str, folder: int) -> int:
    with open(npy.open_array(name, folder), "rb", buffering=0) as file:
        return int.from_bytes(hashlib.file_digest(file, xxhash.xxh3_64).digest())


def follow(
    starts: Sequence[Start],
    found: Scan,
    choice: Choice,
    selected: Selected,
    engine: Engine,
    progress: Progress,
) -> tuple[list[Start], Comparison]:
    """Find the shards that stay and those to write again; leave what is new in ``selected``.

    Give also what has changed in all of them.
    """
    followed, total = [], Comparison()
    anywhere = set(selected.order)
    for start in starts:
        own = None if start.part is None else set(selected.of_part(selected.order, start.part))
        result = compare(
            start.folder,
            start.packed,
            found,
            (anywhere if own is None else own).__contains__,
            engine,
            progress,
            lists=lambda name: choice.fault(name, None) is None,
            elsewhere=anywhere.__contains__,
        )
        require_ready(found.store, result.not_ready)
        followed.append(_followed(start, result))
        total.add(result)
    staying = {sample for shard in total.shards for sample in shard.samples}
    selected.order = [sample for sample in selected.order if sample not in staying]
    selected.packed_before = len(staying)
    return followed, total


def _followed(start: Start, result: Comparison) -> Start:
    buckets: dict[str, list[Compared]] = {}
    for each in result.shards:
        buckets.setdefault(each.shard.entry.bucket, []).append(each)
    kept, again = [], []
    for bucket, shards in buckets.items():
        for number, each in _numbered(shards).items():
            entry = each.shard.entry
            if each.outdated or number != shard_number(entry.path):
                again.append(Again(bucket, number, each.samples, entry.path))
            else:
                kept.append(entry)
    packed = [each.shard for each in result.shards]
    return replace(start, base=restricted(start.base, kept), packed=packed, again=again)


def _numbered(shards: Sequence[Compared]) -> dict[int, Compared]:
    """Give the shards of a bucket that are not empty their numbers; the last ones fill gaps."""
    full = {shard_number(each.shard.entry.path): each for each in shards if each.samples}
    gaps = [number for number in range(len(full)) if number not in full]
    last = sorted((number for number in full if number >= len(full)), reverse=True)
    moved = dict(zip(last, gaps, strict=True))
    return {moved.get(number, number): each for number, each in full.items()}


def require_some_left(starts: Sequence[Start], selected: Selected, checked: Checked) -> None:
    """Raise if all packed samples would go, and no new one come."""
    packed = sum(len(shard.ids) for start in starts for shard in start.packed)
    if packed and not selected.packed_before and not checked.chosen:
        what = f"no sample would be left of {quantity(packed, 'packed samples')}"
        fix = "check the store and what is selected; to remove all shards, delete their folder"
        raise UsageError(what, fix=fix)


def require_current(
    start: Start,
    scan: Scan,
    selected: Selected,
    output: Location,
    engine: Engine,
    progress: Progress,
) -> None:
    """Raise if packed samples are outdated, before others are appended to them."""
    packed = of_jsonl(jsonl_name(scan.store), start.packed, start.base.runs)
    stays = lambda sample: sample not in selected.unselected  # noqa: E731
    result = compare(start.folder, packed, scan, stays, engine, progress)
    if result.outdated:
        kinds = {"changed": result.changed, "removed": result.removed}
        listed = [
            f"{counts.total:,} {kind} {reasons(counts)}" for kind, counts in kinds.items() if counts
        ]
        are = "is" if result.outdated == 1 else "are"
        count = quantity(result.outdated, "packed samples")
        what = f"{count} {are} outdated: {', '.join(listed)}, so nothing was written"
        sync = commands.pack(scan.store, output, "--sync")
        fix = f"to update the shards and pack what is new, run {sync}"
        raise OutdatedError(what, path=start.folder, fix=fix)
