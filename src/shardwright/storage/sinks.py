"""A new file, while it is written: on a disk (``files``), or on its way to a store (``remote``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, Self


class Hasher(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take in some bytes."""


class Sink:
    """A new file that is being written; leaving the block before ``seal`` discards it.

    Bytes are gathered in a buffer, which is emptied when it is full.
    """

    written = 0  # bytes that are on their way to the disk or the store
    _hashers: Sequence[Hasher]
    _buffer: memoryview
    _used = 0
    _sealed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._sealed:
            self.discard()

    def put(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        while view:
            part = view[: self._room()]
            self._buffer[self._used : self._used + len(part)] = part
            self._used += len(part)
            view = view[len(part) :]

    def put_from(self, fd: int, length: int, hasher: Hasher) -> int:
        """Append bytes of an open file, and hash them; return how many it had."""
        done = 0
        while done < length:
            room = min(self._room(), length - done)
            target = self._buffer[self._used : self._used + room]
            count = os.readv(fd, [target])
            if not count:
                break
            hasher.update(target[:count])
            self._used += count
            done += count
        return done

    def seal(self, length: int) -> None:
        """Check that it has this length, and that all of it is where it belongs."""
        raise NotImplementedError

    def discard(self) -> None:
        """Forget what was written."""
        raise NotImplementedError

    def _hash(self, data: memoryview) -> None:
        for hasher in self._hashers:
            hasher.update(data)

    def _room(self) -> int:
        """Make room in the buffer and count it."""
        raise NotImplementedError
