"""The second step of packing: look closely at the samples that are to be packed.

Only their arrays are opened: a dry run with a limit of 100 opens 300 files, however large the store
is. And only their records are read in full.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from functools import cache
from typing import NamedTuple

import xxhash

from shardwright.buckets import Bucket
from shardwright.engine import Engine
from shardwright.errors import OutdatedError
from shardwright.packing.scan import Excerpt, Scan
from shardwright.packing.summary import Counts
from shardwright.progress import Progress, quantity
from shardwright.recipes import Component, Recipe
from shardwright.shards.format import tar
from shardwright.shards.format.record_members import json_member, mask_fault
from shardwright.store import commands, records
from shardwright.store.array_faults import look
from shardwright.store.records import BadRecordError
from shardwright.store.store import Store

_BATCH = 1000  # samples a worker checks at a time


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
        with closing(engine.run(_check, _tasks(scan, drawn))) as results:
            for first, found in results:
                for sample, result in zip(drawn[first : first + len(found)], found, strict=True):
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


class _Task(NamedTuple):
    first: int
    samples: Excerpt
    buckets: list[str]


def _tasks(scan: Scan, samples: Sequence[int]) -> Iterator[_Task]:
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        yield _Task(first, scan.excerpt(batch), [scan.buckets[sample] for sample in batch])


def _check(task: _Task) -> Iterator[tuple[int, list[_Found | str]]]:
    """Check every record and array of a batch; give what was found, or a reason to skip."""
    with ExitStack() as stack:
        folders = task.samples.folders(stack)
        recipe = task.samples.store.recipe
        results = []
        for (image_id, line), bucket in zip(task.samples.lines(), task.buckets, strict=True):
            results.append(_check_sample(line, image_id, folders, recipe, _size(bucket)))
        yield task.first, results


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
