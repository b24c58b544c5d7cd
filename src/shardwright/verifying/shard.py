"""The check of one shard, in a worker: it is read once, and searched only where it differs.

The expected contents come from the manifest, or else from the index, or else, for the shard of
another tool, from the tar alone.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import xxhash

from shardwright.errors import ShardwrightError, StorageError
from shardwright.interrupts import check
from shardwright.recipes import Recipe
from shardwright.shards.format import index, records, tar
from shardwright.shards.format.index import Head, ShardIndex
from shardwright.shards.format.keys import key, keys
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.tarread import Fault
from shardwright.storage.extents import TarFile
from shardwright.storage.local import BUFFER, OnePass, Readable
from shardwright.storage.objects import Object
from shardwright.storage.place import Place
from shardwright.store.findings import NOT_COMPARED, Finding
from shardwright.text import brief
from shardwright.verifying.against_store import Source
from shardwright.verifying.sample import OWN_SIZE, check_sample, header, indexed, walked

_REPORT = 1 << 25  # bytes between two progress messages
_FIX_SAMPLE = "fix the sample in the store (shardwright verify there), then pack with --overwrite"
_PACK_AGAIN = "if the store is right, pack again with --overwrite"
_RESTORE = "restore the manifest and the indexes, or pack again with --overwrite"
_MOST = 100  # findings per shard that are damage, and as many that are none

Outline = tuple[int, list[tuple[int, bytes]]]  # a size, and the first and last header by offset


@dataclass(frozen=True)
class ShardToCheck:
    """A shard to check."""

    path: str  # below the folder
    entry: ShardEntry | None  # in the manifest
    fix: str
    source: Source | None = None  # the records of its samples, to compare with


@dataclass
class Seen:
    """The result of checking a shard."""

    path: str
    bytes: int = 0
    keys: list[str] = field(default_factory=list)  # of its samples
    fits: bool = True  # whether size, first and last header are those of its index
    counts: Counter[str] = field(default_factory=Counter)  # faults, by kind
    first: dict[str, Fault] = field(default_factory=dict)  # of each kind
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Checker:
    """Checks shards of a folder."""

    shards: Place
    recipe: Recipe
    read_data: bool

    def check(self, task: ShardToCheck) -> Iterator[int | Seen]:
        """Check one shard; give the bytes read from time to time, and the result at the end."""
        seen, listed = Seen(task.path), Counter[bool]()  # by whether it is damage
        try:
            with self.shards.open(task.path) as file:
                for fault in self._faults(file, task, seen):
                    if isinstance(fault, int):
                        yield fault
                        continue
                    seen.counts[fault.kind] += 1
                    seen.first.setdefault(fault.kind, fault)
                    if fault.kind in (OWN_SIZE, NOT_COMPARED):  # reported once
                        continue
                    listed[fault.damage] += 1
                    if listed[fault.damage] <= _MOST:
                        seen.findings.append(fault.finding(task.path, task.fix))
                    elif fault.damage:
                        more = Fault("more", "has more faults than are listed")
                        seen.findings.append(more.finding(task.path, task.fix))
                        break
        except StorageError:  # of the network, not of this shard
            raise
        except OSError as error:
            fault = Fault("unreadable", str(error.strerror))
            seen.findings.append(fault.finding(task.path, f"make it readable, or {task.fix}"))
        yield seen

    def _faults(self, file: TarFile, task: ShardToCheck, seen: Seen) -> Iterator[int | Fault]:
        """Give the bytes read from time to time, and each fault."""
        seen.bytes = file.size
        shard, entry = None, task.entry
        try:
            shard = self.index(task)
        except StorageError:
            raise
        except ShardwrightError as error:
            yield Fault("index_damaged", f"its index cannot be used ({error.path}: {error.what})")
        stated = shard.head if shard else entry
        if stated is not None:
            yield from self._records(task.path, stated.records_xxh3)
        size = stated.bytes if stated else seen.bytes
        if shard is not None:
            for what in _differences(entry, shard.head, self.recipe):
                yield Fault("manifest_wrong", what, fix=_RESTORE)
            seen.keys = list(keys(shard.head.ids, shard.head.longest_key))
            seen.fits = _fits(file, _outline(shard))
        if seen.bytes != size:
            kind = "short" if seen.bytes < size else "long"
            yield Fault(kind, f"has {seen.bytes:,} bytes and should have {size:,}")
        if shard is not None and not self.read_data:
            if not seen.fits and seen.bytes == size:
                yield Fault("header_differs", "its first or last header is damaged")
            return
        if not self.read_data:
            yield from chain.from_iterable(self._samples(file.in_one_pass(), task, None, seen))
            return
        recorded = (stated and stated.sha256) or (entry and entry.sha256)
        fast, secure = xxhash.xxh3_128(), hashlib.sha256()
        passing = OnePass(file, [fast, secure] if recorded else [fast])
        written = (self.shards.folder / task.path).stat() if stated and task.source else None
        faults, reported = list[Fault](), 0
        cut = shard is not None and seen.bytes != size  # so its samples are not where they were
        for found in () if cut else self._samples(passing, task, shard, seen, written):
            faults += found
            if passing.done - reported >= _REPORT:
                yield passing.done - reported
                reported = passing.done
        while passing.done < passing.size:  # after the end of the tar, or after damage
            passing.read_until(passing.done + _REPORT)
            yield passing.done - reported
            reported = passing.done
        yield passing.done - reported
        if stated and (fast.hexdigest(), seen.bytes) != (stated.xxh3, size):
            yield Fault("differs", "its bytes are not those that were written")
            if shard is not None:
                yield from _locate(file, shard)
                return
            if written is not None:  # which the shard is not, after all
                seen.keys.clear()
                again = self._samples(file.in_one_pass(), task, None, seen)
                faults = list(chain.from_iterable(again))
        elif stated and recorded and secure.hexdigest() != recorded:
            what = brief(f"its sha256 is {secure.hexdigest()}, but {recorded} is recorded")
            yield Fault("sha256_differs", what, fix=_RESTORE)
        yield from faults

    def _samples(
        self,
        file: Readable,
        task: ShardToCheck,
        shard: ShardIndex | None,
        seen: Seen,
        written: os.stat_result | Object | None = None,
    ) -> Iterator[list[Fault]]:
        """Find the faults of each sample, and of what is between them.

        ``written`` are the times of the shard, if it is as it was written.
        """
        bucket, names = task.entry.bucket if task.entry else None, seen.keys
        samples = indexed(file, shard, names) if shard else walked(file, names, self.recipe)
        for found in samples:
            check()
            if isinstance(found, Fault):
                yield [found]
                continue
            name, places = found
            image_id, faults = check_sample(places, bucket, self.recipe)
            # Our own shard is as it was packed, so the store has it too.
            fix = _FIX_SAMPLE if shard else None
            faults = [fault._replace(sample=name, fix=fix) for fault in faults]
            if task.source and image_id is not None:
                for fault in task.source.faults(image_id, places, written):
                    faults.append(fault._replace(sample=name, fix=fault.fix or _PACK_AGAIN))
            yield faults

    def _records(self, path: str, xxh3: str) -> Iterator[Fault]:
        """Compare the records of a shard with their checksum."""
        try:
            what = "is damaged" if records.checksum(self.shards.folder, path) != xxh3 else None
        except StorageError:
            raise
        except OSError as error:
            what = str(error.strerror)
        if what is not None:
            file = self.shards.folder / records.records_name(path)
            yield Fault("records_damaged", f"its records cannot be used ({file}: {what})")

    def index(self, task: ShardToCheck) -> ShardIndex | None:
        """Read the index of a shard, if it must have one or has one; raise if it is unusable."""
        path, entry = self.shards.folder / index.index_name(task.path), task.entry
        if entry is None and not path.is_file():
            return None
        data = index.read(path)
        shard = index.decode(data, path)
        if not _is_consecutive(shard):
            raise ShardwrightError("does not describe a tar", path=path)
        if entry is not None and xxhash.xxh3_64_hexdigest(data) != entry.index_xxh3:
            other = any(_differences(entry, shard.head, self.recipe))
            what = "is not the index of this shard" if other else "is not the one in the manifest"
            raise ShardwrightError(what, path=path)
        return shard


class Outlines:
    """Recognises the shards of a folder by their size and their first and last header."""

    def __init__(self, shards: Place) -> None:
        self._shards = shards

    def find(self, path: str) -> str | None:
        """Find the shard that a file is, whatever its name."""
        with suppress(OSError), self._shards.open(path) as file:
            return next((name for name, outline in self._known if _fits(file, outline)), None)
        return None

    @cached_property
    def _known(self) -> list[tuple[str, Outline]]:
        known = list[tuple[str, Outline]]()
        for path in index.shards(self._shards.folder):
            check()
            with suppress(ShardwrightError):  # a damaged index is reported with its own shard
                shard = index.load(self._shards.folder, path)
                known += [(path, _outline(shard))] if _is_consecutive(shard) else []
        return known


def _differences(entry: ShardEntry | None, head: Head, recipe: Recipe) -> Iterator[str]:
    """Compare a manifest with an index, which may have been written without ``--sha256``."""
    if entry is None:
        return
    both = {
        "path": (entry.path, head.shard),
        "samples": (entry.samples, len(head.ids)),
        "bytes": (entry.bytes, head.bytes),
        "xxh3": (entry.xxh3, head.xxh3),
        "sha256": (entry.sha256, head.sha256 or entry.sha256),
        "records_xxh3": (entry.records_xxh3, head.records_xxh3),
        "members": (recipe.suffixes, head.members),
    }
    for name, (listed, found) in both.items():
        if listed != found:
            yield brief(f"the manifest says {name} {listed}, but its index says {found}")


def _checksum(file: Readable, offset: int, size: int) -> int:
    hasher, end = xxhash.xxh3_64(), offset + size
    for start in range(offset, end, BUFFER):
        check()
        hasher.update(file.pread(start, min(BUFFER, end - start)))
    return hasher.intdigest()


def _outline(shard: ShardIndex) -> Outline:
    ids, members, headers = shard.head.ids, shard.head.members, []
    for sample, column in ((0, 0), (len(ids) - 1, len(members) - 1)) if ids and members else ():
        offset, size, _ = shard.member(sample, column)
        name = f"{key(ids[sample], shard.head.longest_key)}.{members[column]}"
        headers.append((offset - tar.BLOCK, header(name, size)))
    return shard.head.bytes, headers


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
            parts = {
                "header": _is(file, offset - tar.BLOCK, header(f"{name}.{suffix}", size)),
                "data": _checksum(file, offset, size) == checksum,
                "padding": _is(file, offset + size, bytes(tar.padding(size))),
            }
            for part, same in parts.items():
                if not same:
                    yield Fault(f"{part}_differs", f"its {part} is damaged", suffix, image_id)
    if file.size != position + len(tar.END) or not _is(file, position, tar.END):
        yield Fault("end_differs", f"does not end at byte {position} as it should")


def _is(file: Readable, offset: int, expected: bytes) -> bool:
    return file.pread(offset, len(expected)) == expected
