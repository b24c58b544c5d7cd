"""The last step of packing: write planned shards, one worker process to a shard."""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from shardwright.packing.plan import Shard
from shardwright.packing.scan import Excerpt, changed
from shardwright.recipes import Component
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.writer import ShardWriter, names_of
from shardwright.storage.place import Place
from shardwright.store import content, npy, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError

_AHEAD = 4  # samples; a few MB
_REPORT = 1 << 25  # bytes between two progress messages


@dataclass(frozen=True)
class ShardToWrite:
    """All that a worker needs to write one shard."""

    output: Place
    shard: Shard
    samples: Excerpt
    sizes: array[int]
    times: array[int]
    sha256: bool


@dataclass(frozen=True)
class Written:
    """A shard that was written."""

    entry: ShardEntry
    etags: dict[str, str]  # at an object store: of its files, by name


def write_shard(task: ShardToWrite) -> Iterator[int | Written]:
    """Write one shard, its records and its index; yield bytes now and then, then the shard."""
    path, size, ids = task.shard.path, task.shard.bytes, task.samples.ids
    store, recipe = task.samples.store, task.samples.store.recipe
    reported = 0
    with ShardWriter(task.output, path, recipe, sha256=task.sha256) as shard:
        with ExitStack() as stack:
            folders = task.samples.folders(stack)
            planned = zip(task.sizes, task.times, strict=True)
            opened = stack.enter_context(closing(_open_ahead(ids, folders)))
            facts = stack.enter_context(closing(task.samples.known()))
            samples = zip(task.samples.lines(), facts, opened, strict=True)
            for (image_id, line), fact, arrays in samples:
                try:
                    record = records.parse(line)
                except BadRecordError:
                    raise changed(store.jsonl, "written to") from None
                shard.begin(image_id, record, fact)
                for (component, _), fd in zip(folders, arrays, strict=True):
                    try:
                        if isinstance(fd, BadArrayError):
                            raise fd
                        _add_array(shard, component, fd, *next(planned))
                    except BadArrayError as error:
                        how = error.reason.replace("_", " ")
                        raise changed(store.array(component, image_id), how) from None
                if shard.written - reported >= _REPORT:
                    yield shard.written - reported
                    reported = shard.written
        entry = shard.finish(size)
    etags = task.output.settle(names_of(path))
    yield size - reported
    yield Written(entry, etags)


def _add_array(shard: ShardWriter, component: Component, fd: int, size: int, time: int) -> None:
    """Add an array file's bytes as they are, if it is still as it was planned."""
    if content.check(fd, component)[0] != size:
        raise BadArrayError("another_size")
    shard.add_file(component, fd, size)
    after = os.fstat(fd)
    if (after.st_size, after.st_ctime_ns) != (size, time):
        raise BadArrayError("written_to_or_replaced")


def _open_ahead(
    ids: list[str], folders: list[tuple[Component, int]]
) -> Generator[list[int | BadArrayError], None, None]:
    """Open the arrays of each sample, some samples ahead: the kernel reads them while we write."""
    waiting: deque[list[int | BadArrayError]] = deque()
    try:
        for number in range(len(ids) + _AHEAD):
            if number < len(ids):
                image_id = ids[number]
                waiting.append([_open_array(image_id + row.extension, fd) for row, fd in folders])
            if number >= _AHEAD:
                yield waiting[0]
                _close(waiting.popleft())
    finally:
        for arrays in waiting:
            _close(arrays)


def _open_array(name: str, folder: int) -> int | BadArrayError:
    """Open an array that is needed soon; what is wrong with it is raised when its turn comes."""
    try:
        fd = npy.open_array(name, folder)
    except BadArrayError as error:
        return error
    if hasattr(os, "posix_fadvise"):  # macOS has none
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
    return fd


def _close(arrays: list[int | BadArrayError]) -> None:
    for fd in arrays:
        if isinstance(fd, int):
            os.close(fd)
