"""The last step of packing: write planned shards, one worker process to a shard."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from shardwright import schema
from shardwright.errors import SourceChangedError
from shardwright.files import GatheredFile
from shardwright.pack.plan import Plan, Shard
from shardwright.pack.scan import file_state
from shardwright.shards import tar
from shardwright.shards.keys import key
from shardwright.shards.samples import json_member, mask_member
from shardwright.store import npy, records
from shardwright.store.npy import BadArrayError

_REPORT = 1 << 25  # bytes between two progress messages


@dataclass(frozen=True)
class Task:
    """All that a worker needs to write one shard."""

    path: Path
    bucket: str
    bytes: int
    jsonl: Path
    jsonl_state: tuple[int, int]
    derived_dir: Path
    offsets: array[int]
    lengths: array[int]
    sizes: array[int]


@dataclass(frozen=True)
class Sealed:
    """A shard that is whole and on the disk, still under its temporary name."""

    tmp: Path
    path: Path
    bucket: str
    samples: int


def make_task(plan: Plan, shard: Shard, output_dir: Path) -> Task:
    """Gather what a worker needs for one shard."""
    scan, count = plan.scan, len(schema.COMPONENTS)
    sizes = array("Q")
    for sample in shard.samples:
        sizes += plan.sizes[sample * count : sample * count + count]
    return Task(
        shard.path(output_dir),
        shard.bucket,
        shard.bytes,
        scan.jsonl,
        scan.jsonl_state,
        scan.derived_dir,
        array("Q", [scan.offsets[sample] for sample in shard.samples]),
        array("I", [scan.lengths[sample] for sample in shard.samples]),
        sizes,
    )


def write_shard(task: Task) -> Iterator[int | Sealed]:
    """Write one shard; give the bytes written now and then, and at last the sealed file."""
    with GatheredFile(task.path) as file, ExitStack() as stack:
        jsonl = _open_for(stack, task.jsonl, os.O_RDONLY)
        folders = [
            (component, _open_for(stack, task.derived_dir / component.folder, os.O_DIRECTORY))
            for component in schema.COMPONENTS
        ]
        sizes = iter(task.sizes)
        reported = 0
        for offset, length in zip(task.offsets, task.lengths, strict=True):
            if file_state(jsonl) != task.jsonl_state:
                raise _changed(task.jsonl, "written to")
            record = records.parse(os.pread(jsonl, length, offset))
            image_id = record["image_id"]
            name = key(image_id)
            _put_member(file, f"{name}.{schema.JSON_SUFFIX}", json_member(record))
            for component, folder in folders:
                try:
                    fd = npy.open_array(f"{image_id}.npy", folder)
                    try:
                        _put_array(file, f"{name}.{component.suffix}", next(sizes), component, fd)
                    finally:
                        os.close(fd)
                except BadArrayError as error:
                    path = task.derived_dir / component.folder / f"{image_id}.npy"
                    raise _changed(path, error.reason.replace("_", " ")) from None
            _put_member(file, f"{name}.{schema.MASK.suffix}", mask_member(record))
            if file.written - reported >= _REPORT:
                yield file.written - reported
                reported = file.written
        file.put(tar.END)
        file.seal(task.bytes)
    yield task.bytes - reported
    yield Sealed(file.tmp, file.path, task.bucket, len(task.offsets))


def _changed(path: Path, how: str) -> SourceChangedError:
    return SourceChangedError(f"{path}: changed while packing ({how}); run pack again")


def _open_for(stack: ExitStack, path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise _changed(path, str(error.strerror)) from error
    stack.callback(os.close, fd)
    return fd


def _put_member(file: GatheredFile, name: str, data: bytes) -> None:
    file.put(tar.header(name, len(data)) + data + bytes(tar.padding(len(data))))


def _put_array(
    file: GatheredFile, name: str, size: int, component: schema.Component, fd: int
) -> None:
    """Add an array file's bytes as they are, if it is still as it was planned."""
    before = os.fstat(fd)
    npy.check(fd, component)
    if before.st_size != size:
        raise BadArrayError("another_size")
    file.put(tar.header(name, size))
    if file.put_from(fd, size) != size:
        raise BadArrayError("truncated")
    after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
        raise BadArrayError("written_to")
    file.put(bytes(tar.padding(size)))
