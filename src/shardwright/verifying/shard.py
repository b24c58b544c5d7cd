"""The check of one shard, as a worker does it: read once, and looked into only where it differs.

What is known of a shard comes from the manifest, or else from its index, or else, when another tool
made it, from nothing but the tar itself.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import xxhash

from shardwright.errors import ShardwrightError
from shardwright.progress import quantity
from shardwright.recipe import Recipe
from shardwright.shards.format import index, tar
from shardwright.shards.format.index import Head, ShardIndex
from shardwright.shards.format.keys import key, keys
from shardwright.shards.format.manifest import ShardEntry
from shardwright.store import commands
from shardwright.store.findings import Finding
from shardwright.verifying import sample as check_sample
from shardwright.verifying import walk
from shardwright.verifying.against import Source
from shardwright.verifying.sample import OWN_SIZE, Fault
from shardwright.verifying.walk import Sample, header

_BUFFER = 1 << 18  # bytes read at a time: few enough to be hashed while the core has them at hand
_REPORT = 1 << 25  # bytes between two progress messages
_MEND = "fix the sample in the store (shardwright verify there), then pack with --overwrite"
_ANEW = "if the store is right, pack again with --overwrite"
_RESTORE = "restore the manifest and the indexes, or pack again with --overwrite"
_MOST = 100  # findings in one shard; after so many, more tell nothing new


@dataclass(frozen=True)
class ShardToCheck:
    """A shard to be checked."""

    path: str  # below the folder
    entry: ShardEntry | None  # what the manifest says of it
    cure: str


@dataclass
class Seen:
    """What was seen of a shard."""

    path: str
    bytes: int = 0
    keys: list[str] = field(default_factory=list)  # of its samples
    findings: list[Finding] = field(default_factory=list)


class _Outline(NamedTuple):
    """What tells a shard from any other at a glance: its size, and its first and last header."""

    size: int
    headers: tuple[tuple[int, bytes], ...]  # each with its offset

    def fits(self, fd: int) -> bool:
        """Whether an open shard is of this outline."""
        return os.fstat(fd).st_size == self.size and all(_is(fd, *part) for part in self.headers)


@dataclass(frozen=True)
class Checker:
    """Checks shards of a folder; made before the workers are, so that they share it."""

    folder: Path
    recipe: Recipe
    read_data: bool
    source: Source | None

    def check(self, task: ShardToCheck) -> Iterator[int | Seen]:
        """Check one shard; give the bytes read now and then, at last what was seen."""
        seen = Seen(task.path)
        try:
            fd = os.open(self.folder / task.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            seen.findings.append(_unreadable(task, error))
            yield seen
            return
        try:
            owned: list[tuple[str | None, Fault]] = []
            for message in self._faults(fd, task, seen):
                if isinstance(message, int):
                    yield message
                    continue
                sample, fault = message
                if len(seen.findings) == _MOST:
                    fault, sample = Fault("more", None, "has more faults than are listed"), None
                if fault.kind == OWN_SIZE:
                    owned.append((sample, fault))
                else:
                    seen.findings.append(_finding(task, fault, sample))
                if len(seen.findings) > _MOST:
                    break
            if owned:
                seen.findings.append(self._own_size(task, owned))
        except OSError as error:
            seen.findings.append(_unreadable(task, error))
        finally:
            os.close(fd)
        yield seen

    def _faults(
        self, fd: int, task: ShardToCheck, seen: Seen
    ) -> Generator[int | tuple[str | None, Fault], None, None]:
        """Give progress, and each fault with its sample."""
        seen.bytes = os.fstat(fd).st_size
        shard, entry, fits = None, task.entry, True
        try:
            shard = self._index(task)
        except ShardwrightError as error:
            what = f"its index cannot be used ({cause(error)})"
            yield None, Fault("index_damaged", None, what)
        stated = shard.head if shard else entry
        size = stated.bytes if stated else seen.bytes
        if shard is not None:
            for what in _differences(entry, shard.head):
                yield None, Fault("manifest_wrong", None, what, cure=_RESTORE)
            seen.keys = list(keys(shard.head.ids, shard.head.longest_key))
            fits = _outline(shard).fits(fd)
            if not fits and (other := self._other(fd)) is not None:
                what = f"is {other} under another name"
                yield None, Fault("renamed", None, what, cure=f"rename it to {other}")
                return
        if seen.bytes != size:
            short = "short" if seen.bytes < size else "long"
            yield None, Fault(short, None, f"has {seen.bytes} bytes and should have {size}")
        if shard is not None and not self.read_data:
            if not fits and seen.bytes == size:
                yield None, Fault("header_differs", None, "its first or last header is damaged")
            return
        recorded = (stated and stated.sha256) or (entry and entry.sha256)
        digest = secure = None
        if self.read_data:
            digest, secure = yield from _hash(fd, bool(recorded))
        if stated and digest and (digest, seen.bytes) != (stated.xxh3, size):
            what = "its bytes are not those that were written"
            yield None, Fault("differs", None, what)
            if shard is not None:
                yield from _locate(fd, shard)
                return
        elif secure not in (None, recorded):
            what = f"its sha256 is {secure}, and {recorded} is recorded"
            yield None, Fault("sha256_differs", None, what, cure=_RESTORE)
        samples = (
            walk.indexed(fd, shard, seen.keys) if shard else walk.walked(fd, seen.keys, self.recipe)
        )
        bucket = entry.bucket if entry else None
        with ExitStack() as stack:
            jsonl = stack.enter_context(self.source.open_jsonl()) if self.source else None
            for item in samples:
                if not isinstance(item, Sample):
                    yield item
                    continue
                image_id, faults = check_sample.check(fd, item.places, bucket, self.recipe)
                for fault in faults:  # if ours, it is as it was packed: the store has it too
                    yield item.name, fault._replace(cure=_MEND if shard else None)
                if self.source and jsonl and image_id is not None:
                    for fault in self.source.faults(fd, image_id, item.places, jsonl):
                        yield item.name, fault._replace(cure=_ANEW)

    def _own_size(self, task: ShardToCheck, owned: list[tuple[str | None, Fault]]) -> Finding:
        """Sum up the arrays that follow their picture and not their bucket, in one note."""
        sample, fault = owned[0]
        count = quantity(len(owned), "such arrays")
        what = f"{fault.what} ({count} in this shard), so they do not stack in a batch"
        return _finding(task, fault._replace(what=what, cure=self._stacking), sample)

    @cached_property
    def _stacking(self) -> str:
        """Say how to make arrays stack; only the store knows all of it."""
        if self.source is None:
            return (
                "to make them stack: derive with --fit bucket and --recompute, then pack with "
                "--overwrite; verify --against DERIVED_DIR gives the command"
            )
        fix = commands.derive(self.source.store, fit_buckets=True)
        return f"to make them stack: run the same pack with --overwrite after {fix}"

    def _other(self, fd: int) -> str | None:
        """Say which shard this is that is not its own, if it is one."""
        return next((path for path, outline in self._outlines if outline.fits(fd)), None)

    @cached_property
    def _outlines(self) -> list[tuple[str, _Outline]]:
        """Outline all shards of the folder; read only if one is met that is not its own."""
        outlines = []
        for path in index.shards(self.folder):
            with suppress(ShardwrightError):  # a damaged index is told with its own shard
                shard = index.load(self.folder, path)
                outlines += [(path, _outline(shard))] if _is_consecutive(shard) else []
        return outlines

    def _index(self, task: ShardToCheck) -> ShardIndex | None:
        path = index.index_path(self.folder, task.path)
        if task.entry is None and not path.exists():
            return None
        data = index.read(path)
        shard = index.decode(data, path)
        entry, head = task.entry, shard.head
        if not _is_consecutive(shard):
            raise ShardwrightError(f"{path}: does not describe a tar")
        if entry is not None and xxhash.xxh3_64_hexdigest(data) != entry.index_xxh3:
            if any(_differences(entry, head)):
                raise ShardwrightError(f"{path}: is not the index of this shard")
            raise ShardwrightError(f"{path}: is not the one that the manifest speaks of")
        return shard


def _differences(entry: ShardEntry | None, head: Head) -> Iterator[str]:
    """Say what a manifest states otherwise than an index; an older index may have no sha256."""
    if entry is None:
        return
    both = {
        "path": (entry.path, head.shard),
        "samples": (entry.samples, len(head.ids)),
        "bytes": (entry.bytes, head.bytes),
        "xxh3": (entry.xxh3, head.xxh3),
        "sha256": (entry.sha256, head.sha256 or entry.sha256),
    }
    for name, (said, found) in both.items():
        if said != found:
            yield f"the manifest says {name} {said}, and its index {found}"


def _finding(task: ShardToCheck, fault: Fault, sample: str | None = None) -> Finding:
    """Say a fault in words."""
    return Finding(
        fault.kind,
        task.path,
        None,
        fault.what,
        fault.cure or task.cure,
        fault.damage,
        sample,
        fault.member,
    )


def _unreadable(task: ShardToCheck, error: OSError) -> Finding:
    cure = f"make it readable, or {task.cure}"
    return _finding(task, Fault("unreadable", None, str(error.strerror), cure=cure))


def cause(error: ShardwrightError) -> str:
    """Give an error without its cure, for a finding that has a cure of its own."""
    return str(error).partition("; ")[0]


def file_digest(path: Path) -> str:
    """Give the checksum of a whole shard, as a manifest has it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    hashing = _hash(fd, False)
    try:
        while True:
            next(hashing)
    except StopIteration as end:
        return str(end.value[0])
    finally:
        os.close(fd)


def _hash(fd: int, with_sha256: bool) -> Generator[int, None, tuple[str, str | None]]:
    hasher = xxhash.xxh3_128()
    secure = hashlib.sha256() if with_sha256 else None
    buffer = memoryview(mmap.mmap(-1, _BUFFER))
    unreported = 0
    if hasattr(os, "posix_fadvise"):  # have the disk read further ahead; macOS cannot be told
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    while count := os.readv(fd, [buffer]):
        hasher.update(buffer[:count])
        if secure is not None:
            secure.update(buffer[:count])
        unreported += count
        if unreported >= _REPORT:
            yield unreported
            unreported = 0
    yield unreported
    return hasher.hexdigest(), secure.hexdigest() if secure else None


def _outline(shard: ShardIndex) -> _Outline:
    head = shard.head
    if not head.ids or not head.members:
        return _Outline(head.bytes, ())
    headers = []
    for sample, column in ((0, 0), (len(head.ids) - 1, len(head.members) - 1)):
        offset, size, _ = shard.member(sample, column)
        name = key(head.ids[sample], head.longest_key)
        expected = header(f"{name}.{head.members[column]}", size)
        headers.append((offset - tar.BLOCK, expected))
    return _Outline(head.bytes, tuple(headers))


def _is_consecutive(shard: ShardIndex) -> bool:
    """Whether an index describes members one after the other, and nothing beyond the shard."""
    position = 0
    for offset, size in shard.spots():
        if offset != position + tar.BLOCK:
            return False
        position += tar.member_bytes(size)
    return position + len(tar.END) == shard.head.bytes


def _locate(fd: int, shard: ShardIndex) -> Iterator[tuple[str | None, Fault]]:
    """Find which bytes are not those that the index was made from: of which sample and member."""
    size = os.fstat(fd).st_size
    position = 0
    for sample, image_id in enumerate(shard.head.ids):
        name = key(image_id, shard.head.longest_key)
        for column, suffix in enumerate(shard.head.members):
            member = shard.member(sample, column)
            position += tar.member_bytes(member.size)
            if position > size:
                yield image_id, Fault("cut_off", suffix, "is cut off, or not there at all")
                continue
            parts = {
                "header": _is(
                    fd, member.offset - tar.BLOCK, header(f"{name}.{suffix}", member.size)
                ),
                "data": _same_data(fd, member.offset, member.size, member.xxh3),
                "padding": _is(fd, member.offset + member.size, bytes(tar.padding(member.size))),
            }
            for part, same in parts.items():
                if not same:
                    yield image_id, Fault(f"{part}_differs", suffix, f"its {part} is damaged")
    if size != position + len(tar.END) or not _is(fd, position, tar.END):
        yield None, Fault("end_differs", None, f"it does not end as it should at byte {position}")


def _same_data(fd: int, offset: int, size: int, checksum: int) -> bool:
    hasher = xxhash.xxh3_64()
    end = offset + size
    while offset < end and (data := os.pread(fd, min(_BUFFER, end - offset), offset)):
        hasher.update(data)
        offset += len(data)
    return offset == end and hasher.intdigest() == checksum


def _is(fd: int, offset: int, expected: bytes) -> bool:
    return os.pread(fd, len(expected), offset) == expected
