"""The second step of packing: look at the arrays of the samples that are to be packed.

Only those are opened: a dry run with a limit of 100 opens 300 files, be the store ever so large.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

from shardwright import schema
from shardwright.buckets import Bucket
from shardwright.files import explained
from shardwright.pack.scan import Scan
from shardwright.progress import Progress
from shardwright.shards import tar
from shardwright.store import npy
from shardwright.store.npy import BadArrayError
from shardwright.workers import run

_BATCH = 1000  # samples a worker checks at a time


class Checked:
    """What the checks found, by sample."""

    def __init__(self, samples: int) -> None:
        self._components = len(schema.COMPONENTS)
        self._sizes = array("Q", bytes(8 * self._components * samples))
        self._times = array("q", self._sizes.tobytes())
        self.off_shape = bytearray(samples)  # 1 where an array is not of the bucket's shape

    def sizes(self, sample: int) -> array[int]:
        """Give the sizes of a sample's array files, in the order of the schema."""
        start = sample * self._components
        return self._sizes[start : start + self._components]

    def times(self, sample: int) -> array[int]:
        """Say when each of the files came or changed last, to notice if that happens again."""
        start = sample * self._components
        return self._times[start : start + self._components]

    def note(
        self, sample: int, sizes: Sequence[int], times: Sequence[int], off_shape: bool
    ) -> None:
        """Note what was found of a sound sample."""
        start = sample * self._components
        self._sizes[start : start + self._components] = array("Q", sizes)
        self._times[start : start + self._components] = array("q", times)
        self.off_shape[sample] = off_shape


def choose(
    scan: Scan, order: Sequence[int], limit: int | None, workers: int, progress: Progress
) -> tuple[list[int], Checked]:
    """Take samples in order until the limit is reached, and drop those with unsound arrays."""
    checked = Checked(len(scan.ids))
    chosen: list[int] = []
    wanted = len(order) if limit is None else min(limit, len(order))
    progress.phase("check", wanted, "samples")
    position = 0
    # A sample whose arrays are not sound gives its place to the next one.
    while len(chosen) < wanted and position < len(order):
        drawn = order[position : position + wanted - len(chosen)]
        position += len(drawn)
        unsound: dict[int, str] = {}
        tasks = _batches(scan, drawn)
        with closing(run(_check, tasks, min(workers, len(drawn) // _BATCH + 1))) as results:
            for first, found in results:
                for sample, result in zip(drawn[first : first + len(found)], found, strict=True):
                    if isinstance(result, str):
                        unsound[sample] = result
                    else:
                        checked.note(sample, *result)
                progress.advance(len(found))
        for sample in sorted(unsound):  # so that the report is the same for any workers
            scan.drop(sample, unsound[sample])
        chosen += [sample for sample in drawn if sample not in unsound]
    return chosen, checked


_Task = tuple[Path, int, list[str], list[str]]
_Result = str | tuple[list[int], list[int], bool]


def _batches(scan: Scan, samples: Sequence[int]) -> Iterator[_Task]:
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        yield (
            scan.derived_dir,
            first,
            [scan.ids[sample] for sample in batch],
            [scan.buckets[sample] for sample in batch],
        )


def _check(task: _Task) -> Iterator[tuple[int, list[_Result]]]:
    """Read the header and size of every array of a batch; give the sizes, or a reason to skip."""
    derived_dir, first, ids, buckets = task
    with ExitStack() as stack:
        folders = []
        for component in schema.COMPONENTS:
            path = derived_dir / component.folder
            with explained(path):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, fd)
            folders.append((component, fd))
        yield (
            first,
            [
                _check_sample(image_id, _shapes(bucket), folders)
                for image_id, bucket in zip(ids, buckets, strict=True)
            ],
        )


@cache
def _shapes(bucket: str) -> tuple[schema.Shape, ...]:
    """Give the shapes of a sample's arrays for a picture of exactly the bucket's size."""
    size = Bucket.parse(bucket)
    return tuple(c.shape_for(size.width, size.height) for c in schema.COMPONENTS)


def _check_sample(
    image_id: str, shapes: tuple[schema.Shape, ...], folders: list[tuple[schema.Component, int]]
) -> _Result:
    sizes, times = [], []
    off_shape = False
    for (component, folder), bucket_shape in zip(folders, shapes, strict=True):
        try:
            fd = npy.open_array(image_id + ".npy", folder)
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
    return sizes, times, off_shape
