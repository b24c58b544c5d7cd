"""Reads a file once from its start to its end, whatever is asked of it, and hashes it on the way.

So a shard at a URL is fetched once, in ranges ahead, although its samples are looked at in detail.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.interrupts import check
from shardwright.storage.local import Readable
from shardwright.storage.remote import RemoteFile
from shardwright.storage.sinks import Hasher

BUFFER = 1 << 18  # bytes read at a time: few enough to stay in the CPU cache while hashed
_KEPT = 64  # buffers, 16 MiB: more than most samples have


class OnePass:
    """A file that is read ahead of what is asked of it; what was read last is kept."""

    def __init__(self, file: Readable, hashers: Sequence[Hasher] = ()) -> None:
        self.size, self.done = file.size, 0  # bytes in all, and those that were read
        self._file, self._hashers = file, hashers
        self._kept: dict[int, bytes] = {}  # by number

    def pread(self, offset: int, size: int) -> bytes:
        """Read some bytes; fewer only at the end."""
        self.read_until(offset + size)
        first, end = offset // BUFFER, min(offset + size, self.size)
        if first not in self._kept:
            return self._file.pread(offset, size)
        data = b"".join(self._kept[number] for number in range(first, -(-end // BUFFER)))
        return data[offset - first * BUFFER : end - first * BUFFER]

    def read_until(self, offset: int) -> None:
        """Read on to an offset, or to the end."""
        while self.done < min(offset, self.size):
            check()
            number, data = self.done // BUFFER, self._file.pread(self.done, BUFFER)
            for hasher in self._hashers:
                hasher.update(data)
            self.done += len(data)
            self._kept[number] = data
            self._kept.pop(number - _KEPT, None)
            if len(data) < BUFFER:  # the file may have become shorter
                self.size = self.done


def in_one_pass(file: Readable) -> Readable:
    """Give a file to look through: one at a URL in one pass, a local one as it is."""
    return OnePass(file) if isinstance(file, RemoteFile) else file
