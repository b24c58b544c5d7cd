"""The second step of packing: choose samples, check their arrays, and lay out the shards.

Everything about the output is decided here, down to the byte, before anything is written.
"""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import xxhash

from shardwright import schema
from shardwright.buckets import Bucket
from shardwright.pack.scan import Scan
from shardwright.progress import Progress
from shardwright.shards import tar
from shardwright.shards.manifest import Settings
from shardwright.shards.names import bucket_folder, shard_name
from shardwright.shards.samples import MASK_BYTES
from shardwright.store import npy
from shardwright.store.npy import BadArrayError
from shardwright.workers import run

_BATCH = 1000  # samples a worker checks at a time


@dataclass(frozen=True)
class Shard:
    """One tar file to be written."""

    bucket: str
    number: int
    samples: array[int]
    bytes: int

    @property
    def path(self) -> str:
        """Give its place below the output folder."""
        return f"{bucket_folder(self.bucket)}/{shard_name(self.number)}"


@dataclass(frozen=True)
class Plan:
    """All shards to be written, and what the checks found of each sample, by its position."""

    scan: Scan
    settings: Settings
    shards: list[Shard]
    sizes: array[int]  # of each array file: as many in a row as there are components
    off_shape: bytearray  # 1 where an array is not of the bucket's shape

    @property
    def buckets(self) -> list[str]:
        """Name the buckets that get shards."""
        return list(dict.fromkeys(shard.bucket for shard in self.shards))

    @property
    def bytes(self) -> int:
        """Count the bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def array_sizes(self, sample: int) -> array[int]:
        """Give the sizes of a sample's array files."""
        count = len(schema.COMPONENTS)
        return self.sizes[sample * count : sample * count + count]

    def digest(self) -> str:
        """Sum up the settings and every sample with its record and sizes, in order."""
        hasher = xxhash.xxh3_128(msgspec.json.encode(self.settings))
        for shard in self.shards:
            hasher.update(f"{shard.path}\0".encode())
            for sample in shard.samples:
                line = self.scan.line_hashes[sample].to_bytes(8, "little")
                name = self.scan.ids[sample].encode()
                hasher.update(name + b"\0" + line + self.array_sizes(sample).tobytes())
        return hasher.hexdigest()


def plan(
    scan: Scan,
    settings: Settings,
    *,
    known: Collection[str],
    first_numbers: Mapping[str, int],
    workers: int,
    progress: Progress,
) -> Plan:
    """Decide which samples go where: filter by bucket, shuffle, limit, group, cut into shards.

    When shards are appended, ``known`` are the ids that have one already, and ``first_numbers``
    says at which number each bucket goes on.
    """
    buckets, limit = settings.buckets, settings.limit
    order = [
        sample
        for sample in scan.ready()
        if (not buckets or scan.buckets[sample] in buckets) and scan.ids[sample] not in known
    ]
    if settings.shuffle:
        # By sort key, because random() is the one method whose sequence Python guarantees.
        draw = random.Random(settings.seed)
        order.sort(key=lambda _: draw.random())
    count = len(schema.COMPONENTS)
    sizes = array("Q", bytes(8 * count * len(scan.ids)))
    off_shape = bytearray(len(scan.ids))
    chosen: list[int] = []
    wanted = len(order) if limit is None else min(limit, len(order))
    progress.phase("check", wanted, "samples")
    position = 0
    # A sample whose arrays are not sound gives its place to the next one.
    while len(chosen) < wanted and position < len(order):
        drawn = order[position : position + wanted - len(chosen)]
        position += len(drawn)
        tasks = _batches(scan, drawn)
        bad: dict[int, str] = {}
        with closing(run(_check, tasks, min(workers, len(drawn) // _BATCH + 1))) as results:
            for first, found in results:
                for sample, result in zip(drawn[first : first + len(found)], found, strict=True):
                    if isinstance(result, str):
                        bad[sample] = result
                    else:
                        sizes[sample * count : sample * count + count] = array("Q", result[0])
                        off_shape[sample] = result[1]
                progress.advance(len(found))
        for sample in sorted(bad):  # in order, so that the report is the same for any workers
            scan.drop(sample, bad[sample])
        chosen += [sample for sample in drawn if sample not in scan.dropped]
    shards = list(_shards(scan, chosen, settings.shard_size, sizes, first_numbers))
    return Plan(scan, settings, shards, sizes, off_shape)


def _shards(
    scan: Scan,
    chosen: list[int],
    shard_size: int,
    sizes: array[int],
    first_numbers: Mapping[str, int],
) -> Iterator[Shard]:
    grouped: dict[str, array[int]] = {}
    for sample in chosen:
        grouped.setdefault(scan.buckets[sample], array("Q")).append(sample)
    count = len(schema.COMPONENTS)
    mask = tar.member_bytes(MASK_BYTES)
    for bucket in sorted(grouped, key=Bucket.parse):
        samples = grouped[bucket]
        starts = range(0, len(samples), shard_size)
        for number, first in enumerate(starts, first_numbers.get(bucket, 0)):
            part = samples[first : first + shard_size]
            members = [scan.json_sizes[sample] for sample in part]
            for sample in part:
                members += sizes[sample * count : sample * count + count]
            total = sum(map(tar.member_bytes, members)) + len(part) * mask + len(tar.END)
            yield Shard(bucket, number, part, total)


_Task = tuple[Path, int, list[str], list[str]]
_Result = str | tuple[list[int], bool]


def _batches(scan: Scan, samples: list[int]) -> Iterator[_Task]:
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
            fd = os.open(derived_dir / component.folder, os.O_RDONLY | os.O_DIRECTORY)
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
    sizes = []
    off_shape = False
    for (component, folder), bucket_shape in zip(folders, shapes, strict=True):
        try:
            fd = npy.open_array(image_id + ".npy", folder)
            try:
                size, shape = npy.check(fd, component)
            finally:
                os.close(fd)
        except BadArrayError as error:
            return f"{component.name}_{error.reason}"
        if size > tar.LARGEST_MEMBER:
            return f"{component.name}_too_large"
        sizes.append(size)
        off_shape |= shape != bucket_shape
    return sizes, off_shape
