"""The second and the third step of packing: look closely at what is packed, and lay out the shards.

Only the arrays of these samples are opened: a dry run with a limit of 100 opens 300 files, however
large the store is. And only their records are read in full. Then all of the output is decided, down
to the byte, before anything is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import msgspec
import xxhash

from shardwright import interrupts
from shardwright.buckets import Bucket
from shardwright.engine import Engine
from shardwright.errors import OutdatedError
from shardwright.packing.scan import Excerpt, Scan
from shardwright.packing.summary import Counts
from shardwright.progress import Progress, quantity
from shardwright.recipes import SPECIFICATION, Component, Recipe
from shardwright.recipes.compare import differences
from shardwright.shards.format import tar
from shardwright.shards.format.manifest import PackSettings, ShardEntry
from shardwright.shards.format.names import bucket_folder, shard_name
from shardwright.shards.format.record_members import json_member, mask_bytes, mask_fault
from shardwright.store import commands, records
from shardwright.store.faults import look
from shardwright.store.records import BadRecordError
from shardwright.store.store import Store


class _Found(NamedTuple):
    """What the plan needs to know of a sample."""

    json_size: int
    line_hash: int
    sizes: list[int]
    times: list[int]
    off_shape: bool


class Checked:
    """What the checks found, by sample: which are packed, and which are invalid."""

    def __init__(self, scan: Scan) -> None:
        samples, components = len(scan.ids), len(scan.store.recipe.components)
        self.chosen: list[int] = []  # in the order in which they are packed
        self.invalid: dict[int, str] = {}  # and why
        self.ready_records = scan.ready_records  # but those
        self.skipped = deepcopy(scan.skipped)  # and those
        self._components = components
        self._sizes = array("Q", [0]) * (components * samples)
        self._times = array("q", [0]) * (components * samples)
        self.json_sizes = array("I", [0]) * samples
        self.line_hashes = array("Q", [0]) * samples
        self.off_shape = bytearray(samples)  # 1 where an array is not of the bucket's shape

    def sizes(self, sample: int) -> array[int]:
        """Give the sizes of a sample's array files, in the order of the recipe."""
        return self._sizes[self._of(sample)]

    def times(self, sample: int) -> array[int]:
        """Give the times of the last change of these files, to notice another."""
        return self._times[self._of(sample)]

    def note(self, sample: int, found: _Found) -> None:
        """Keep what was found of a valid sample."""
        self._sizes[self._of(sample)] = array("Q", found.sizes)
        self._times[self._of(sample)] = array("q", found.times)
        self.off_shape[sample] = found.off_shape
        self.json_sizes[sample] = found.json_size
        self.line_hashes[sample] = found.line_hash

    def _of(self, sample: int) -> slice:
        return slice(sample * self._components, (sample + 1) * self._components)


def check(
    scan: Scan,
    order: Sequence[int],
    limit: int | None,
    engine: Engine,
    progress: Progress,
    again: Sequence[int] = (),
) -> Checked:
    """Take samples in order until the limit is reached; invalid ones do not count.

    Those that are packed ``again``, into their shard, are beside the limit and must be valid.
    """
    checked = Checked(scan)
    order = [*again, *order]
    wanted = len(order) if limit is None else min(len(again) + limit, len(order))
    progress.phase("check", wanted, "samples")
    position = 0
    while len(checked.chosen) < wanted and position < len(order):
        drawn = order[position : position + wanted - len(checked.chosen)]
        position += len(drawn)
        invalid: dict[int, str] = {}
        with closing(engine.run(_check, scan.batches(drawn))) as results:
            for found in results:
                for sample, result in found:
                    if isinstance(result, str):
                        invalid[sample] = result
                    else:
                        checked.note(sample, result)
                progress.advance(len(found))
        for sample, reason in sorted(invalid.items()):  # the same for any number of workers
            checked.invalid[sample] = reason
            checked.skipped.add(reason, scan.ids[sample])
        checked.chosen += [sample for sample in drawn if sample not in invalid]
    faults = Counts()
    for sample in again:
        if sample in checked.invalid:
            faults.add(checked.invalid[sample], scan.ids[sample])
    require_ready(scan.store, faults)
    checked.chosen = checked.chosen[len(again) :]
    checked.ready_records -= len(checked.invalid)
    return checked


def require_ready(store: Store, faults: Counts) -> None:
    """Raise if packed samples have a record, but are not ready to be packed again."""
    if faults:
        are = "is" if faults.total == 1 else "are"
        count = quantity(faults.total, "packed samples")
        what = f"{count} {are} not ready {reasons(faults)}, so nothing was written"
        fix = f"run {commands.derive(store)}, or take them out with --exclude-ids-file"
        raise OutdatedError(what, path=store.jsonl, fix=fix)


def reasons(counts: Counts) -> str:
    """List reasons in parentheses, with an example."""
    named = [
        reason if len(counts) == 1 else f"{reason} {count.count:,}"
        for reason, count in counts.items()
    ]
    return f"({', '.join(named)}; for example {next(iter(counts.values())).example})"


def _check(batch: Excerpt) -> Iterator[list[tuple[int, _Found | str]]]:
    """Check every record and array of a batch; give what was found, or a reason to skip."""
    with ExitStack() as stack:
        folders = batch.folders(stack)
        recipe = batch.store.recipe
        results = []
        lines = zip(batch.samples, batch.lines(), batch.buckets, strict=True)
        for sample, (image_id, line), bucket in lines:
            found = _check_sample(line, image_id, folders, recipe, _size(bucket))
            results.append((sample, found))
        yield results


_size = cache(Bucket.parse)  # there are few


def _check_sample(
    line: bytes,
    image_id: str,
    folders: list[tuple[Component, int]],
    recipe: Recipe,
    bucket: Bucket,
) -> _Found | str:
    try:
        record = records.parse(line)
        json_size = len(json_member(record, recipe))
    except BadRecordError as error:
        return error.reason
    sizes, times = [], []
    off_shape = False
    for component, folder in folders:
        fault, size, shape, time = look(image_id, folder, component)
        if fault is None and size > tar.LARGEST_MEMBER:
            fault = "too_large"
        if fault is None and component.trim and component.mask:
            fault = mask_fault(shape, record[component.mask.field])
        if fault is not None:
            return f"{component.name}_{fault}"
        sizes.append(size)
        times.append(time)
        off_shape |= not component.fits(shape, bucket.width, bucket.height)
    return _Found(json_size, xxhash.xxh3_64_intdigest(line), sizes, times, off_shape)


@dataclass(frozen=True)
class Shard:
    """One tar file to be written."""

    bucket: str
    number: int
    samples: array[int]
    bytes: int

    @property
    def path(self) -> str:
        """Give its path below the output folder."""
        return f"{bucket_folder(self.bucket)}/{shard_name(self.number)}"


class Again(NamedTuple):
    """A packed shard that is written again, without the samples that do not stay."""

    bucket: str
    number: int
    samples: array[int]
    before: str  # its path, which may have another number


@dataclass(frozen=True)
class Packed:
    """A packed shard."""

    entry: ShardEntry
    ids: Sequence[str]
    replaced: bool = False  # an interrupted run may have replaced it already
    changes: Mapping[str, str] = field(default_factory=dict)  # what that had found, by sample


@dataclass(frozen=True)
class Plan:
    """All shards to be written."""

    scan: Scan
    settings: PackSettings
    shards: list[Shard]
    checked: Checked

    @cached_property
    def digest(self) -> str:
        """Sum up the settings and every sample with its record and sizes, in order."""
        hasher = xxhash.xxh3_128(msgspec.json.encode(self.settings))
        recipe = self.scan.store.recipe
        # The fit is in the provenance, and earlier versions kept it only there.
        if differences(SPECIFICATION, replace(recipe, fit=SPECIFICATION.fit)):
            hasher.update(msgspec.json.encode(recipe))
        for shard in self.shards:
            interrupts.check()
            hasher.update(f"{shard.path}\0".encode())
            for sample in shard.samples:
                line = self.checked.line_hashes[sample].to_bytes(8, "little")
                name = self.scan.ids[sample].encode()
                hasher.update(name + b"\0" + line + self.checked.sizes(sample).tobytes())
        return hasher.hexdigest()


def plan(
    scan: Scan,
    checked: Checked,
    chosen: Iterable[int],
    settings: PackSettings,
    first_numbers: Mapping[str, int],
    again: Sequence[Again] = (),
) -> Plan:
    """Group the chosen samples by bucket and cut them into shards.

    ``first_numbers`` are the numbers of the first new shard of buckets, where it is not 0. Shards
    that are written ``again`` come before the new ones.
    """
    grouped: dict[str, array[int]] = {}
    for sample in chosen:
        grouped.setdefault(scan.buckets[sample], array("Q")).append(sample)
    groups = [(bucket, number, samples) for bucket, number, samples, _ in again]
    for bucket, samples in grouped.items():
        starts = range(0, len(samples), settings.shard_size)
        for number, first in enumerate(starts, first_numbers.get(bucket, 0)):
            groups.append((bucket, number, samples[first : first + settings.shard_size]))
    masks = sum(tar.member_bytes(mask_bytes(mask)) for mask in scan.store.recipe.masks)
    shards = []
    for bucket, number, part in sorted(
        groups, key=lambda group: (Bucket.parse(group[0]), group[1])
    ):
        interrupts.check()
        members = [checked.json_sizes[sample] for sample in part]
        for sample in part:
            members += checked.sizes(sample)
        total = sum(map(tar.member_bytes, members)) + len(part) * masks + len(tar.END)
        shards.append(Shard(bucket, number, part, total))
    return Plan(scan, settings, shards, checked)
