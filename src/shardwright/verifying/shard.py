"""The check of one shard, in a worker: it is read once, and searched only where it differs.

The expected contents come from the manifest, or else from the index, or else, for the shard of
another tool, from the tar alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import xxhash

from shardwright.errors import ShardwrightError
from shardwright.interrupts import check
from shardwright.progress import quantity
from shardwright.recipe import Recipe
from shardwright.shards.format import index, tar
from shardwright.shards.format.index import Head, ShardIndex
from shardwright.shards.format.keys import key, keys
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.tarread import Fault
from shardwright.storage.files import Hasher
from shardwright.storage.local import LocalStorage, Readable
from shardwright.store import commands
from shardwright.store.findings import Finding
from shardwright.verifying.against import Source
from shardwright.verifying.sample import OWN_SIZE, check_sample, header, indexed, walked

_BUFFER = 1 << 18  # bytes read at a time: few enough to stay in the CPU cache while hashed
_REPORT = 1 << 25  # bytes between two progress messages
_FIX_SAMPLE = "fix the sample in the store (shardwright verify there), then pack with --overwrite"
_PACK_AGAIN = "if the store is right, pack again with --overwrite"
_RESTORE = "restore the manifest and the indexes, or pack again with --overwrite"
_MOST = 100  # findings per shard

Outline = tuple[int, list[tuple[int, bytes]]]  # a size, and the first and last header by offset


@dataclass(frozen=True)
class ShardToCheck:
    """A shard to check."""

    path: str  # below the folder
    entry: ShardEntry | None  # in the manifest
    fix: str


@dataclass
class Seen:
    """The result of checking a shard."""

    path: str
    bytes: int = 0
    keys: list[str] = field(default_factory=list)  # of its samples
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Checker:
    """Checks shards of a folder; forked workers share it, fresh ones get a copy."""

    shards: LocalStorage
    recipe: Recipe
    read_data: bool
    source: Source | None

    def check(self, task: ShardToCheck) -> Iterator[int | Seen]:
        """Check one shard; give the bytes read from time to time, and the result at the end."""
        seen = Seen(task.path)
        try:
            with self.shards.open(task.path) as file:
                own_size: list[Fault] = []
                for fault in self._faults(file, task, seen):
                    if isinstance(fault, int):
                        yield fault
                    elif fault.kind == OWN_SIZE:
                        own_size.append(fault)
                    elif len(seen.findings) < _MOST:
                        seen.findings.append(fault.finding(task.path, task.fix))
                    else:
                        more = Fault("more", "has more faults than are listed")
                        seen.findings.append(more.finding(task.path, task.fix))
                        break
                if own_size:
                    first, count = own_size[0], quantity(len(own_size), "such arrays")
                    what = f"{first.what} ({count} in this shard), so they do not stack in a batch"
                    summed = first._replace(what=what)
                    seen.findings.append(summed.finding(task.path, self._how_to_stack))
        except OSError as error:
            fault = Fault("unreadable", str(error.strerror))
            seen.findings.append(fault.finding(task.path, f"make it readable, or {task.fix}"))
        yield seen

    def _faults(self, file: Readable, task: ShardToCheck, seen: Seen) -> Iterator[int | Fault]:
        """Give the bytes read from time to time, and each fault."""
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
            fits = _fits(file, _outline(shard))
            if not fits and (other := self.find(task.path)) is not None:
                what = f"is {other} under another name"
                yield Fault("renamed", what, fix=f"rename it to {other}")
                return
        if seen.bytes != size:
            kind = "short" if seen.bytes < size else "long"
            yield Fault(kind, f"has {seen.bytes:,} bytes and should have {size:,}")
        if shard is not None and not self.read_data:
            if not fits and seen.bytes == size:
                yield Fault("header_differs", "its first or last header is damaged")
            return
        recorded = (stated and stated.sha256) or (entry and entry.sha256)
        fast, secure = xxhash.xxh3_128(), hashlib.sha256()
        if self.read_data:
            yield from _read(file, [fast, secure] if recorded else [fast])
            if stated and (fast.hexdigest(), seen.bytes) != (stated.xxh3, size):
                yield Fault("differs", "its bytes are not those that were written")
                if shard is not None:
                    yield from _locate(file, shard)
                    return
            elif recorded and secure.hexdigest() != recorded:
                what = f"its sha256 is {secure.hexdigest()}, but {recorded} is recorded"
                yield Fault("sha256_differs", what, fix=_RESTORE)
        bucket, names = entry.bucket if entry else None, seen.keys
        samples = indexed(file, shard, names) if shard else walked(file, names, self.recipe)
        for found in samples:
            check()
            if isinstance(found, Fault):
                yield found
                continue
            name, places = found
            image_id, faults = check_sample(places, bucket, self.recipe)
            for fault in faults:  # our own shard is as it was packed, so the store has it too
                yield fault._replace(sample=name, fix=_FIX_SAMPLE if shard else None)
            if self.source and image_id is not None:
                for fault in self.source.faults(image_id, places):
                    yield fault._replace(sample=name, fix=_PACK_AGAIN)

    @cached_property
    def _how_to_stack(self) -> str:
        if self.source is None:
            return (
                "to make them stack: derive with --fit bucket and --recompute, then pack with "
                "--overwrite; verify --against DERIVED_DIR prints the command"
            )
        fix = commands.derive(self.source.store, fit_buckets=True)
        return f"to make them stack: run the same pack with --overwrite after {fix}"

    def find(self, path: str) -> str | None:
        """Find the shard that a file is, by its size and its first and last header."""
        with suppress(OSError), self.shards.open(path) as file:
            return next((name for name, outline in self._outlines if _fits(file, outline)), None)
        return None

    @cached_property
    def _outlines(self) -> list[tuple[str, Outline]]:
        """Outline all shards of the folder; read only if one is not what its name says."""
        outlines = []
        for path in index.shards(self.shards.folder):
            check()
            with suppress(ShardwrightError):  # a damaged index is reported with its own shard
                shard = index.load(self.shards.folder, path)
                outlines += [(path, _outline(shard))] if _is_consecutive(shard) else []
        return outlines

    def _index(self, task: ShardToCheck) -> ShardIndex | None:
        path, entry = self.shards.folder / index.index_name(task.path), task.entry
        if entry is None and not path.exists():
            return None
        data = index.read(path)
        shard = index.decode(data, path)
        if not _is_consecutive(shard):
            raise ShardwrightError("does not describe a tar", path=path)
        if entry is not None and xxhash.xxh3_64_hexdigest(data) != entry.index_xxh3:
            other = any(_differences(entry, shard.head))
            what = "is not the index of this shard" if other else "is not the one in the manifest"
            raise ShardwrightError(what, path=path)
        return shard


def _differences(entry: ShardEntry | None, head: Head) -> Iterator[str]:
    """Compare a manifest with an index; an older index may have no sha256."""
    if entry is None:
        return
    both = {
        "path": (entry.path, head.shard),
        "samples": (entry.samples, len(head.ids)),
        "bytes": (entry.bytes, head.bytes),
        "xxh3": (entry.xxh3, head.xxh3),
        "sha256": (entry.sha256, head.sha256 or entry.sha256),
    }
    for name, (listed, found) in both.items():
        if listed != found:
            yield f"the manifest says {name} {listed}, but its index says {found}"


def _read(file: Readable, hashers: Sequence[Hasher]) -> Iterator[int]:
    """Hash all of a file; give the bytes read from time to time."""
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


def _outline(shard: ShardIndex) -> Outline:
    head, headers = shard.head, []
    if head.ids and head.members:
        for sample, column in ((0, 0), (len(head.ids) - 1, len(head.members) - 1)):
            offset, size, _ = shard.member(sample, column)
            name = key(head.ids[sample], head.longest_key)
            headers.append((offset - tar.BLOCK, header(f"{name}.{head.members[column]}", size)))
    return head.bytes, headers


def _fits(file: Readable, outline: Outline) -> bool:
    size, headers = outline
    return file.size == size and all(_is(file, *part) for part in headers)


def _is_consecutive(shard: ShardIndex) -> bool:
    """Whether an index describes members one after the other that fill the shard."""
    position = 0
    for offset, size in shard.spots():
        if offset != position + tar.BLOCK:
            return False
        position += tar.member_bytes(size)
    return position + len(tar.END) == shard.head.bytes


def _locate(file: Readable, shard: ShardIndex) -> Iterator[Fault]:
    """Find the samples and members whose bytes differ from the index."""
    position = 0
    for sample, image_id in enumerate(shard.head.ids):
        name = key(image_id, shard.head.longest_key)
        for column, suffix in enumerate(shard.head.members):
            offset, size, checksum = shard.member(sample, column)
            position += tar.member_bytes(size)
            if position > file.size:
                yield Fault("cut_off", "is truncated or missing", suffix, image_id)
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
        yield Fault("end_differs", f"does not end at byte {position} as it should")


def _is(file: Readable, offset: int, expected: bytes) -> bool:
    return file.pread(offset, len(expected)) == expected
