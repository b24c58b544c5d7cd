"""The last step of packing: write planned shards, one worker process to a shard."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import xxhash
from msgspec import UNSET

from shardwright.errors import StorageError
from shardwright.packing import known
from shardwright.packing.plan import Plan, Shard
from shardwright.packing.scan import Excerpt, changed
from shardwright.recipes import JSON_SUFFIX, Component
from shardwright.shards.format import index, tar
from shardwright.shards.format import records as shard_records
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.storage.files import GatheredFile
from shardwright.storage.local import LocalStorage
from shardwright.store import content, npy, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError

_AHEAD = 4  # samples; a few MB
_REPORT = 1 << 25  # bytes between two progress messages


@dataclass(frozen=True)
class ShardToWrite:
    """All that a worker needs to write one shard."""

    output: LocalStorage
    shard: Shard
    samples: Excerpt
    sizes: array[int]
    times: array[int]
    facts: array[int]  # their places
    sha256: bool


def make_task(
    plan: Plan, shard: Shard, facts: known.Places, output: LocalStorage, sha256: bool
) -> ShardToWrite:
    """Gather what a worker needs for one shard."""
    sizes, times = array("Q"), array("q")
    for sample in shard.samples:
        sizes += plan.checked.sizes(sample)
        times += plan.checked.times(sample)
    samples = plan.scan.excerpt(shard.samples)
    return ShardToWrite(output, shard, samples, sizes, times, facts.of(shard.samples), sha256)


def write_shard(task: ShardToWrite) -> Iterator[int | ShardEntry]:
    """Write one shard, its records and its index; yield bytes now and then, then its entry."""
    path, size, ids = task.shard.path, task.shard.bytes, task.samples.ids
    store, recipe = task.samples.store, task.samples.store.recipe
    fast, secure = xxhash.xxh3_128(), hashlib.sha256() if task.sha256 else None
    beside, beside_size = xxhash.xxh3_64(), 0
    with (
        task.output.create(path, [fast, secure] if secure else [fast]) as file,
        task.output.create(shard_records.records_name(path), [beside]) as lines,
        ExitStack() as stack,
    ):
        shard = _Members(file)
        folders = task.samples.folders(stack)
        planned = zip(task.sizes, task.times, strict=True)
        reported = 0
        opened = stack.enter_context(closing(_open_ahead(ids, folders)))
        facts = stack.enter_context(closing(known.read(store, ids, task.facts)))
        samples = zip(task.samples.lines(), facts, opened, strict=True)
        for (image_id, line), fact, arrays in samples:
            try:
                record = records.parse(line)
            except BadRecordError:
                raise changed(store.jsonl, "written to") from None
            name = key(image_id, recipe.longest_key)
            shard.add(f"{name}.{JSON_SUFFIX}", json_member(record, recipe))
            text = shard_records.line(record, recipe, fact)
            lines.put(text)
            beside_size += len(text)
            for (component, _), fd in zip(folders, arrays, strict=True):
                try:
                    if isinstance(fd, BadArrayError):
                        raise fd
                    shard.add_array(f"{name}.{component.suffix}", *next(planned), component, fd)
                except BadArrayError as error:
                    how = error.reason.replace("_", " ")
                    raise changed(store.array(component, image_id), how) from None
                if component.mask is not None:
                    mask = mask_member(record, component.mask)
                    shard.add(f"{name}.{component.mask.suffix}", mask)
            if file.written - reported >= _REPORT:
                yield file.written - reported
                reported = file.written
        file.put(tar.END)
        file.seal(size)
        lines.seal(beside_size)
    yield size - reported
    head = index.Head(
        version=index.VERSION,
        shard=path,
        bytes=size,
        xxh3=fast.hexdigest(),
        sha256=secure.hexdigest() if secure else None,
        records_xxh3=beside.hexdigest(),
        members=recipe.suffixes,
        longest_key=recipe.longest_key,
        ids=ids,
    )
    data = index.encode(ShardIndex(head, shard.table))
    with task.output.create(index.index_name(path)) as file:
        file.put(data)
        file.seal(len(data))
    yield entry_of(task.shard.bucket, head, data)


def entry_of(bucket: str, head: index.Head, data: bytes) -> ShardEntry:
    """Make the entry of a shard from its index, and the bytes of that."""
    return ShardEntry(
        path=head.shard,
        bucket=bucket,
        samples=len(head.ids),
        bytes=head.bytes,
        xxh3=head.xxh3,
        sha256=head.sha256,
        index_xxh3=xxhash.xxh3_64_hexdigest(data),
        records_xxh3=head.records_xxh3 or UNSET,
    )


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


class _Members:
    """Adds members to a shard, and to its table."""

    def __init__(self, file: GatheredFile) -> None:
        self.file = file
        self.position = 0
        self.table = array("Q")

    def add(self, name: str, data: bytes) -> None:
        """Add a member made here."""
        self.file.put(tar.header(name, len(data)) + data + bytes(tar.padding(len(data))))
        self._note(len(data), xxhash.xxh3_64_intdigest(data))

    def add_array(self, name: str, size: int, time: int, component: Component, fd: int) -> None:
        """Add an array file's bytes as they are, if it is still as it was planned."""
        if content.check(fd, component)[0] != size:
            raise BadArrayError("another_size")
        self.file.put(tar.header(name, size))
        hasher = xxhash.xxh3_64()
        try:
            count = self.file.put_from(fd, size, hasher)
        except StorageError:  # of the shard, not of the array
            raise
        except OSError:
            raise BadArrayError("unreadable") from None
        if count != size:
            raise BadArrayError("truncated")
        after = os.fstat(fd)
        if (after.st_size, after.st_ctime_ns) != (size, time):
            raise BadArrayError("written_to_or_replaced")
        self.file.put(bytes(tar.padding(size)))
        self._note(size, hasher.intdigest())

    def _note(self, size: int, checksum: int) -> None:
        self.table.extend((self.position + tar.BLOCK, size, checksum))
        self.position += tar.member_bytes(size)
