"""The check of one shard, as a worker does it: read once, and looked into only where it differs.

What is known of a shard comes from the manifest, or else from its index, or else, when another tool
made it, from nothing but the tar itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import xxhash

from shardwright.errors import ShardwrightError
from shardwright.interrupts import check
from shardwright.progress import quantity
from shardwright.recipe import Recipe
from shardwright.shards.format import index, tar
from shardwright.shards.format.index import Head, ShardIndex
from shardwright.shards.format.keys import key, keys
from shardwright.shards.format.manifest import ShardEntry
from shardwright.storage.files import Hasher
from shardwright.storage.local import LocalStorage, Readable
from shardwright.store import commands
from shardwright.store.findings import Fault, Finding
from shardwright.verifying.against import Source
from shardwright.verifying.sample import OWN_SIZE, check_sample, header, indexed, walked

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

    def fits(self, file: Readable) -> bool:
        """Whether an open shard is of this outline."""
        return file.size == self.size and all(_is(file, *part) for part in self.headers)


@dataclass(frozen=True)
class Checker:
    """Checks shards of a folder; made before the workers are, so that they share it."""

    shards: LocalStorage
    recipe: Recipe
    read_data: bool
    source: Source | None

    def check(self, task: ShardToCheck) -> Iterator[int | Seen]:
        """Check one shard; give the bytes read now and then, at last what was seen."""
        seen = Seen(task.path)
        try:
            with self.shards.open(task.path) as file:
                owned: list[Fault] = []
                for fault in self._faults(file, task, seen):
                    if isinstance(fault, int):
                        yield fault
                    elif fault.kind == OWN_SIZE:
                        owned.append(fault)
                    elif len(seen.findings) < _MOST:
                        seen.findings.append(fault.finding(task.path, task.cure))
                    else:
                        more = Fault("more", "has more faults than are listed")
                        seen.findings.append(more.finding(task.path, task.cure))
                        break
                if owned:
                    seen.findings.append(self._own_size(owned).finding(task.path, task.cure))
        except OSError as error:
            fault = Fault("unreadable", str(error.strerror))
            seen.findings.append(fault.finding(task.path, f"make it readable, or {task.cure}"))
        yield seen

    def _faults(self, file: Readable, task: ShardToCheck, seen: Seen) -> Iterator[int | Fault]:
        """Give the bytes read now and then, and each fault."""
        seen.bytes = file.size
        shard, entry, fits = None, task.entry, True
        try:
            shard = self._index(task)
        except ShardwrightError as error:
            what = f"its index cannot be used ({error.path}: {error.what})"
            yield Fault("index_damaged", what)
        stated = shard.head if shard else entry
        size = stated.bytes if stated else seen.bytes
        if shard is not None:
            for what in _differences(entry, shard.head):
                yield Fault("manifest_wrong", what, fix=_RESTORE)
            seen.keys = list(keys(shard.head.ids, shard.head.longest_key))
            fits = _outline(shard).fits(file)
            if not fits and (other := self._other(file)) is not None:
                what = f"is {other} under another name"
                yield Fault("renamed", what, fix=f"rename it to {other}")
                return
        if seen.bytes != size:
            short = "short" if seen.bytes < size else "long"
            yield Fault(short, f"has {seen.bytes} bytes and should have {size}")
        if shard is not None and not self.read_data:
            if not fits and seen.bytes == size:
                yield Fault("header_differs", "its first or last header is damaged")
            return
        recorded = (stated and stated.sha256) or (entry and entry.sha256)
        whole, secure = xxhash.xxh3_128(), hashlib.sha256()
        if self.read_data:
            yield from _read(file, [whole, secure] if recorded else [whole])
            if stated and (whole.hexdigest(), seen.bytes) != (stated.xxh3, size):
                yield Fault("differs", "its bytes are not those that were written")
                if shard is not None:
                    yield from _locate(file, shard)
                    return
            elif recorded and secure.hexdigest() != recorded:
                what = f"its sha256 is {secure.hexdigest()}, and {recorded} is recorded"
                yield Fault("sha256_differs", what, fix=_RESTORE)
        bucket, names = entry.bucket if entry else None, seen.keys
        samples = indexed(file, shard, names) if shard else walked(file, names, self.recipe)
        with ExitStack() as stack:
            jsonl = stack.enter_context(self.source.open_jsonl()) if self.source else None
            for found in samples:
                check()
                if isinstance(found, Fault):
                    yield found
                    continue
                name, places = found
                image_id, faults = check_sample(places, bucket, self.recipe)
                for fault in faults:  # if ours, it is as it was packed: the store has it too
                    yield fault._replace(sample=name, fix=_MEND if shard else None)
                if self.source and jsonl and image_id is not None:
                    for fault in self.source.faults(image_id, places, jsonl):
                        yield fault._replace(sample=name, fix=_ANEW)

    def _own_size(self, owned: list[Fault]) -> Fault:
        """Sum up the arrays that follow their picture and not their bucket, in one note."""
        count = quantity(len(owned), "such arrays")
        what = f"{owned[0].what} ({count} in this shard), so they do not stack in a batch"
        return owned[0]._replace(what=what, fix=self._stacking)

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

    def _other(self, file: Readable) -> str | None:
        """Say which shard this is that is not its own, if it is one."""
        return next((path for path, outline in self._outlines if outline.fits(file)), None)

    @cached_property
    def _outlines(self) -> list[tuple[str, _Outline]]:
        """Outline all shards of the folder; read only if one is met that is not its own."""
        outlines = []
        for path in index.shards(self.shards.folder):
            check()
            with suppress(ShardwrightError):  # a damaged index is reported with its own shard
                shard = index.load(self.shards.folder, path)
                outlines += [(path, _outline(shard))] if _is_consecutive(shard) else []
        return outlines

    def _index(self, task: ShardToCheck) -> ShardIndex | None:
        path = self.shards.folder / index.index_name(task.path)
        if task.entry is None and not path.exists():
            return None
        data = index.read(path)
        shard = index.decode(data, path)
        entry, head = task.entry, shard.head
        if not _is_consecutive(shard):
            raise ShardwrightError("does not describe a tar", path=path)
        if entry is not None and xxhash.xxh3_64_hexdigest(data) != entry.index_xxh3:
            if any(_differences(entry, head)):
                raise ShardwrightError("is not the index of this shard", path=path)
            raise ShardwrightError("is not the one that the manifest speaks of", path=path)
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


def file_digest(file: Readable) -> str:
    """Give the checksum of a complete shard, as a manifest has it."""
    hasher = xxhash.xxh3_128()
    for _ in _read(file, [hasher]):
        pass
    return hasher.hexdigest()


def _read(file: Readable, hashers: Sequence[Hasher]) -> Iterator[int]:
    """Have hashers take in all of a file; give the bytes read now and then."""
    unreported = 0
    for data in _pieces(file, 0, file.size):
        for hasher in hashers:
            hasher.update(data)
        unreported += len(data)
        if unreported >= _REPORT:
            yield unreported
            unreported = 0
    yield unreported


def _pieces(file: Readable, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end and (data := file.pread(offset, min(_BUFFER, end - offset))):
        check()
        yield data
        offset += len(data)


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


def _locate(file: Readable, shard: ShardIndex) -> Iterator[Fault]:
    """Find which bytes are not those that the index was made from: of which sample and member."""
    position = 0
    for sample, image_id in enumerate(shard.head.ids):
        name = key(image_id, shard.head.longest_key)
        for column, suffix in enumerate(shard.head.members):
            offset, size, checksum = shard.member(sample, column)
            position += tar.member_bytes(size)
            if position > file.size:
                yield Fault("cut_off", "is cut off, or not there at all", suffix, image_id)
                continue
            hasher = xxhash.xxh3_64()
            for data in _pieces(file, offset, size):
                hasher.update(data)
            parts = {
                "header": _is(file, offset - tar.BLOCK, header(f"{name}.{suffix}", size)),
                "data": hasher.intdigest() == checksum,
                "padding": _is(file, offset + size, bytes(tar.padding(size))),
            }
            for part, same in parts.items():
                if not same:
                    yield Fault(f"{part}_differs", f"its {part} is damaged", suffix, image_id)
    if file.size != position + len(tar.END) or not _is(file, position, tar.END):
        yield Fault("end_differs", f"it does not end as it should at byte {position}")


def _is(file: Readable, offset: int, expected: bytes) -> bool:
    return file.pread(offset, len(expected)) == expected
