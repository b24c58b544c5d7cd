"""A cache of remote files in a local folder, which all processes of a machine may share.

A file holds a segment of one of them: a table with the checksum of each block, then the blocks, of
which those that nobody has read are holes. A block counts only if its bytes have its checksum, so
nothing needs a sync or a temporary name: what a killed process or a full disk left half written is
fetched again. A lock keeps the count of bytes; readers need none. As nothing has to be durable,
nothing here goes through the seam of ``storage.files``.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xxhash

from shardwright import regular
from shardwright.storage import files
from shardwright.storage.pieces import Piece

BLOCK = 1 << 16  # bytes that are fetched and checked together: they cost about what a request does
_BLOCKS = 256  # in a segment
_HEAD = 4096  # bytes before the blocks: the table, 8 bytes for each, on a page of its own
_SUFFIX = ".blocks"
_PAUSE = 60  # seconds until a use is noted again, or room is looked for again
_log = logging.getLogger("shardwright")


class Segment(NamedTuple):
    """Some blocks that follow each other in one file."""

    path: str
    seed: int  # of the checksums, so that no other file's blocks are taken for these
    length: int  # of all blocks in the file
    blocks: range  # numbered in the file


class Cache:
    """A folder of at most so many bytes; it can be pickled and forked.

    When it is full, what was last used before this cache was opened makes room, the oldest use
    first. What was used since then stays, and nothing is added: an epoch reads everything once, so
    the oldest is what is read again first.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = str(path.absolute()), limit
        self._opened = time.time()
        self._full_until = 0.0
        self._adds = [True]  # emptied by the first thread that finds the disk full: pop is atomic
        files.make_folder(path.absolute())

    def get(self, folder: str, wanted: Piece, fetch: Callable[[Piece], bytes]) -> memoryview:
        """Give a piece of a file in a folder; fetch and keep the blocks that are not here."""
        whole, offset, size = wanted
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        start = first * BLOCK
        data = memoryview(bytearray(min((last + 1) * BLOCK, whole.bytes) - start))
        missing: list[int] = []
        for number, segment in self._segments(folder, wanted, first, last):
            place = number * BLOCK - start
            absent = self._read(segment, data[place : place + len(segment.blocks) * BLOCK])
            missing += [number + block for block in absent]
        if missing:
            begin, end = missing[0] * BLOCK, min((missing[-1] + 1) * BLOCK, whole.bytes)
            data[begin - start : end - start] = fetch(Piece(whole, begin, end - begin))
            segments = self._segments(folder, wanted, missing[0], missing[-1])
            self._add([(segment, data[n * BLOCK - start : end - start]) for n, segment in segments])
        return data.toreadonly()[offset - start : offset - start + size]

    def _segments(
        self, folder: str, wanted: Piece, first: int, last: int
    ) -> Iterator[tuple[int, Segment]]:
        """Give the files of some blocks of a file, each with the number of its first one."""
        whole = wanted.whole
        identity = f"{folder}\n{whole.path}\n{whole.checksum}\n{whole.bytes}".encode()
        name, seed = xxhash.xxh3_128_hexdigest(identity), xxhash.xxh3_64_intdigest(identity)
        while first <= last:
            segment, block = divmod(first, _BLOCKS)
            stop = min(_BLOCKS, block + last + 1 - first)
            path = f"{self._path}/{name}-{segment}{_SUFFIX}"
            length = min(_BLOCKS * BLOCK, whole.bytes - segment * _BLOCKS * BLOCK)
            yield first, Segment(path, seed + segment, length, range(block, stop))
            first += stop - block

    def _read(self, segment: Segment, data: memoryview) -> list[int]:
        """Read blocks into their place; give those that are not here, counted from the first."""
        count, first = len(segment.blocks), segment.blocks.start
        try:
            fd = regular.descriptor(segment.path)
        except OSError:
            return list(range(count))
        try:
            if os.fstat(fd).st_mtime < max(self._opened, time.time() - _PAUSE):
                with suppress(OSError):  # it is another user's
                    os.utime(fd)
            table = os.pread(fd, 8 * count, 8 * first).ljust(8 * count, b"\0")
            os.preadv(fd, [data], _HEAD + first * BLOCK)
        except OSError:
            return list(range(count))
        finally:
            os.close(fd)
        sums = memoryview(table).cast("Q")
        return [n for n in range(count) if not sums[n] or sums[n] != _checksum(segment, data, n)]

    def _add(self, fetched: list[tuple[Segment, memoryview]]) -> None:
        """Keep blocks, if there is room for them."""
        if not self._adds or time.monotonic() < self._full_until:
            return
        try:
            fd = regular.descriptor(f"{self._path}/used", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # also while writing, so that no count misses it
                if self._reserve(fd, sum(_HEAD + len(s.blocks) * BLOCK for s, _ in fetched)):
                    for segment, data in fetched:
                        _write(segment, data)
                else:
                    self._full_until = time.monotonic() + _PAUSE
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked meanwhile has it open too
                os.close(fd)
        except OSError as error:
            with suppress(IndexError):  # another thread has reported it
                self._adds.pop()
                _log.warning("%s: %s; nothing is added to the cache any more", self._path, error)

    def _reserve(self, fd: int, count: int) -> bool:
        """Count bytes that will be written; say whether there is room for them."""
        known = os.pread(fd, 20, 0)
        used = int(known) if known.isdigit() else self._limit
        if used + count > self._limit:
            used = self._make_room(count)
        fits = used + count <= self._limit
        os.pwrite(fd, b"%020d" % (used + count * fits), 0)
        return fits

    def _make_room(self, count: int) -> int:
        """Remove what has not been used for long, some more than is needed; give what is used."""
        found = []
        for entry in os.scandir(self._path):
            if entry.name.endswith(_SUFFIX):
                known = entry.stat()
                found.append((known.st_mtime, known.st_blocks * 512, entry.path))
        used = sum(taken for _, taken, _ in found)
        if used + count > self._limit:
            goal = self._limit - max(count, self._limit // 16)
            for last_use, taken, path in sorted(found):
                if used <= goal or last_use >= self._opened:
                    break
                os.unlink(path)
                used -= taken
        return used


def _write(segment: Segment, data: memoryview) -> None:
    count, first = len(segment.blocks), segment.blocks.start
    fd = regular.descriptor(segment.path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, _HEAD + segment.length)  # or some file systems allocate in advance
        part = data[: count * BLOCK]
        sums = b"".join(
            _checksum(segment, data, n).to_bytes(8, sys.byteorder) for n in range(count)
        )
        written = os.pwrite(fd, part, _HEAD + first * BLOCK)
        if written < len(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(fd, sums, 8 * first)
    finally:
        os.close(fd)


def _checksum(segment: Segment, data: memoryview, number: int) -> int:
    return xxhash.xxh3_64_intdigest(data[number * BLOCK : (number + 1) * BLOCK], segment.seed)
