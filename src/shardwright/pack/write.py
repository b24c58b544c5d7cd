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
from shardwright.files import NewFile
from shardwright.pack.plan import Plan, Shard
from shardwright.pack.scan import file_state
from shardwright.shards import tar
from shardwright.shards.keys import key
from shardwright.shards.samples import json_member, mask_member
from shardwright.store import npy, records
from shardwright.store.npy import BadArrayError

_BUFFER = 1 << 20  # small enough to stay in a core's cache between the read and the write
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
    with NewFile(task.path) as file, ExitStack() as stack:
        out = _Gather(file)
        jsonl = _open_for(stack, task.jsonl, os.O_RDONLY)
        folders = [
            (_open_for(stack, folder, os.O_RDONLY | os.O_DIRECTORY), folder, component)
            for component in schema.COMPONENTS
            for folder in [task.derived_dir / component.folder]
        ]
        sizes = iter(task.sizes)
        reported = 0
        for offset, length in zip(task.offsets, task.lengths, strict=True):
            if file_state(jsonl) != task.jsonl_state:
                raise SourceChangedError(f"{task.jsonl}: changed while packing; run pack again")
            record = records.parse(os.pread(jsonl, length, offset))
            image_id = record["image_id"]
            name = key(image_id)
            out.member(f"{name}.{schema.JSON_SUFFIX}", json_member(record))
            for folder_fd, folder, component in folders:
                out.header(f"{name}.{component.suffix}", size := next(sizes))
                try:
                    out.array(f"{image_id}.npy", folder_fd, size, component)
                except BadArrayError as error:
                    raise SourceChangedError(
                        f"{folder / image_id}.npy: changed while packing "
                        f"({error.reason.replace('_', ' ')}); run pack again"
                    ) from None
            out.member(f"{name}.{schema.MASK.suffix}", mask_member(record))
            if file.written - reported >= _REPORT:
                yield file.written - reported
                reported = file.written
        out.put(tar.END)
        out.flush()
        yield file.written - reported
        file.seal(task.bytes)
    yield Sealed(file.tmp, file.path, task.bucket, len(task.offsets))


def _open_for(stack: ExitStack, path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise SourceChangedError(
            f"{path}: changed while packing ({error.strerror}); run pack again"
        ) from error
    stack.callback(os.close, fd)
    return fd


class _Gather:
    """Brings headers, arrays and padding together in one buffer, written out when it is full.

    An array's bytes are read straight to where they will be written from: one copy in, one out.
    """

    def __init__(self, file: NewFile) -> None:
        self.file = file
        self.view = memoryview(bytearray(_BUFFER))
        self.used = 0

    def member(self, name: str, data: bytes) -> None:
        """Add a whole small member."""
        self.header(name, len(data))
        self.put(data + bytes(tar.padding(len(data))))

    def header(self, name: str, size: int) -> None:
        """Begin a member."""
        self.put(tar.header(name, size))

    def array(self, name: str, folder_fd: int, size: int, component: schema.Component) -> None:
        """Add an array file's bytes as they are, if it is still as it was planned."""
        fd = npy.open_array(name, folder_fd)
        try:
            before = os.fstat(fd)
            npy.check(fd, component)
            if before.st_size != size:
                raise BadArrayError("another_size")
            self._read(fd, size)
            after = os.fstat(fd)
            if (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, size):
                raise BadArrayError("written_to")
        finally:
            os.close(fd)
        self.put(bytes(tar.padding(size)))

    def put(self, data: bytes) -> None:
        """Add bytes."""
        for start in range(0, len(data), _BUFFER):
            part = data[start : start + _BUFFER]
            if self.used + len(part) > _BUFFER:
                self.flush()
            self.view[self.used : self.used + len(part)] = part
            self.used += len(part)

    def flush(self) -> None:
        """Write out what has gathered."""
        self.file.write(self.view[: self.used])
        self.used = 0

    def _read(self, fd: int, size: int) -> None:
        while size:
            if self.used == _BUFFER:
                self.flush()
            count = os.readv(fd, [self.view[self.used : min(self.used + size, _BUFFER)]])
            if not count:
                raise BadArrayError("truncated")
            self.used += count
            size -= count
