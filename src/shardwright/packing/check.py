"""The second step of packing: look closely at the samples that are to be packed.

Only their arrays are opened: a dry run with a limit of 100 opens 300 files, be the store ever so
large. And only their records are read in full.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import xxhash

from shardwright.buckets import Bucket
from shardwright.engine import Engine
from shardwright.errors import SourceChangedError
from shardwright.interrupts import check
from shardwright.packing.scan import Scan
from shardwright.progress import Progress
from shardwright.recipe import Component, Recipe, Shape
from shardwright.shards.format import tar
from shardwright.shards.format.record_members import json_member
from shardwright.storage import files
from shardwright.store import npy, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError
from shardwright.store.store import ARRAY_SUFFIX, Store

_BATCH = 1000  # samples a worker checks at a time


class _Sound(NamedTuple):
    """What is worth knowing of a sample that can be packed."""

    json_size: int
    line_hash: int
    sizes: list[int]
    times: list[int]
    off_shape: bool


class Checked:
    """What the checks found, by sample."""

    def __init__(self, samples: int, components: int) -> None:
        self._components = components
        self._sizes = array("Q", [0]) * (self._components * samples)
        self._times = array("q", [0]) * (self._components * samples)
        self.json_sizes = array("I", [0]) * samples
        self.line_hashes = array("Q", [0]) * samples
        self.off_shape = bytearray(samples)  # 1 where an array is not of the bucket's shape

    def sizes(self, sample: int) -> array[int]:
        """Give the sizes of a sample's array files, in the order of the recipe."""
        start = sample * self._components
        return self._sizes[start : start + self._components]

    def times(self, sample: int) -> array[int]:
        """Say when each of the files came or changed last, to notice if that happens again."""
        start = sample * self._components
        return self._times[start : start + self._components]

    def note(self, sample: int, found: _Sound) -> None:
        """Note what was found of a sound sample."""
        start = sample * self._components
        self._sizes[start : start + self._components] = array("Q", found.sizes)
        self._times[start : start + self._components] = array("q", found.times)
        self.off_shape[sample] = found.off_shape
        self.json_sizes[sample] = found.json_size
        self.line_hashes[sample] = found.line_hash


def choose(
    scan: Scan, order: Sequence[int], limit: int | None, engine: Engine, progress: Progress
) -> tuple[list[int], Checked]:
    """Take samples in order until the limit is reached, and drop those with invalid arrays."""
    checked = Checked(len(scan.ids), len(scan.store.recipe.components))
    chosen: list[int] = []
    wanted = len(order) if limit is None else min(limit, len(order))
    progress.phase("check", wanted, "samples")
    position = 0
    # A sample whose arrays are not sound gives its place to the next one.
    while len(chosen) < wanted and position < len(order):
        drawn = order[position : position + wanted - len(chosen)]
        position += len(drawn)
        invalid: dict[int, str] = {}
        with closing(engine.run(_check, _batches(scan, drawn))) as results:
            for first, found in results:
                for sample, result in zip(drawn[first : first + len(found)], found, strict=True):
                    if isinstance(result, str):
                        invalid[sample] = result
                    else:
                        checked.note(sample, result)
                progress.advance(len(found))
        for sample in sorted(invalid):  # so that the report is the same for any workers
            scan.drop(sample, invalid[sample])
        chosen += [sample for sample in drawn if sample not in invalid]
    return chosen, checked


@dataclass(frozen=True)
class _Task:
    """All that a worker needs to check some samples."""

    store: Store
    jsonl_state: tuple[int, int]
    first: int
    ids: list[str]
    buckets: list[str]
    offsets: array[int]
    lengths: array[int]


def _batches(scan: Scan, samples: Sequence[int]) -> Iterator[_Task]:
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        yield _Task(
            scan.store,
            scan.jsonl_state,
            first,
            [scan.ids[sample] for sample in batch],
            [scan.buckets[sample] for sample in batch],
            array("Q", [scan.offsets[sample] for sample in batch]),
            array("I", [scan.lengths[sample] for sample in batch]),
        )


def _check(task: _Task) -> Iterator[tuple[int, list[_Sound | str]]]:
    """Look at every record and array of a batch; give what was found, or a reason to skip."""
    with ExitStack() as stack:
        folders = []
        store = task.store
        for component in store.recipe.components:
            fd = _open(store.arrays(component), os.O_DIRECTORY, stack)
            folders.append((component, fd))
        jsonl = _open(store.jsonl, 0, stack)
        results: list[_Sound | str] = []
        for image_id, bucket, offset, length in zip(
            task.ids, task.buckets, task.offsets, task.lengths, strict=True
        ):
            check()
            line = os.pread(jsonl, length, offset)
            results.append(_check_sample(line, image_id, bucket, folders, store.recipe))
        if files.state(jsonl) != task.jsonl_state:
            raise _changed(store.jsonl, "written to")
        yield task.first, results


def _open(path: Path, flags: int, stack: ExitStack) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except OSError as error:  # the scan could
        raise _changed(path, str(error.strerror)) from error
    stack.callback(os.close, fd)
    return fd


def _changed(path: Path, how: str) -> SourceChangedError:
    return SourceChangedError(f"{path}: changed while it was read ({how}); run again")


@cache
def _shapes(recipe: Recipe, bucket: str) -> tuple[Shape, ...]:
    """Give the shapes of a sample's arrays for a picture of exactly the bucket's size."""
    size = Bucket.parse(bucket)
    return tuple(c.shape_for(size.width, size.height) for c in recipe.components)


def _check_sample(
    line: bytes,
    image_id: str,
    bucket: str,
    folders: list[tuple[Component, int]],
    recipe: Recipe,
) -> _Sound | str:
    try:
        json_size = len(json_member(records.parse(line), recipe))
    except BadRecordError as error:
        return error.reason
    sizes, times = [], []
    off_shape = False
    for (component, folder), bucket_shape in zip(folders, _shapes(recipe, bucket), strict=True):
        try:
            fd = npy.open_array(image_id + ARRAY_SUFFIX, folder)
            try:
                size, shape = npy.check(fd, component)
                times.append(os.fstat(fd).st_ctime_ns)
            finally:
                os.close(fd)
        except BadArrayError as error:
            return f"{component.name}_{error.reason}"
        if size > tar.LARGEST_MEMBER:
            return f"{component.name}_too_large"
        sizes.append(size)
        off_shape |= shape != bucket_shape
    return _Sound(json_size, xxhash.xxh3_64_intdigest(line), sizes, times, off_shape)
