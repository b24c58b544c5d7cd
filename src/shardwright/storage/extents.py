"""Where the bytes of a picture or a text are: in a file of their own, or in a part of a tar.

All that reads pictures takes either. Of a part, Pillow gets what it would get of a file. Both may
be at a URL: there each request takes time and costs money, so what has been read is kept in the
part.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import xxhash

from shardwright import regular
from shardwright.errors import StorageError
from shardwright.storage.local import LocalFile
from shardwright.storage.remote import RemoteFile
from shardwright.storage.urls import Url, is_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEAD = 1 << 14  # bytes: enough for the sizes of nearly all pictures
_AT_ONCE = 1 << 30  # bytes: the system reads no more than 2 GiB in one call
_LEAST = 1 << 17  # bytes of one request

# Why what is at a URL cannot be used. The last two may pass by themselves.
CHANGED, GONE, UNREADABLE = "changed", "gone", "unreadable"


class Part(NamedTuple):
    """A member of a tar: where its bytes are, and its name. A file at a URL is one without a name.

    The last three are only for URLs.
    """

    path: str  # of the tar
    offset: int
    size: int
    name: str
    mtime_ns: int = 0  # as it was listed
    xxh3: str = ""  # that its first bytes must have, if it was planned
    data: bytes = b""  # what has been read of it, from its begin

    def __str__(self) -> str:
        return f"{self.path}/{self.name}" if self.name else self.path


Extent: TypeAlias = str | Part  # a file by its path, or a part of one
TarFile: TypeAlias = LocalFile | RemoteFile


class CutOffError(OSError):
    """A tar that ends before a part of it does."""


class FarError(OSError):
    """What is at a URL cannot be read, is gone (ENOENT), or is not what was planned (ESTALE)."""

    @property
    def reason(self) -> str:
        """Say why, in one word."""
        return {errno.ENOENT: GONE, errno.ESTALE: CHANGED}.get(self.errno or 0, UNREADABLE)


def expected(path: str, mtime_ns: int, xxh3: str) -> tuple[int, str] | tuple[()]:
    """Give what is compared of a file whenever it is read; nothing for one that is looked at."""
    return (mtime_ns, xxh3) if is_url(path) else ()


def may_pass(path: str) -> bool:
    """Whether a file that cannot be read may be read later in the same run: a store may be busy."""
    return is_url(path)


def is_at_hand(place: Extent) -> bool:
    """Whether its bytes can be read without a request."""
    return isinstance(place, str) or not is_url(place.path) or len(place.data) == place.size


def is_regular(place: Extent) -> bool:
    """Whether it is in a regular file: opening a pipe or a device may block forever."""
    path = place if isinstance(place, str) else place.path
    return is_url(path) or stat.S_ISREG(os.stat(path).st_mode)


def fetched(place: Extent, count: int = _AT_ONCE) -> Extent:
    """Read a part at a URL into memory, or its first bytes; what is elsewhere stays there.

    Raises FarError, also if it is not what was planned: no other request is needed to know that.
    """
    if isinstance(place, str) or not is_url(place.path):
        return place
    size = min(place.size, count)
    # A file that has grown has one byte more.
    more = int(size == place.size and not place.name)
    data = _get(place.path, place.offset, size + more)
    if len(data) != size or (place.xxh3 and begins(data) != place.xxh3):
        what = "its tar" if place.name else "its file"
        raise FarError(errno.ESTALE, f"{what} has changed since it was planned")
    return place._replace(data=data)


def begins(data: bytes) -> str:
    """Hash how a file begins."""
    return xxhash.xxh3_64_hexdigest(data[:HEAD])


def read(place: Extent) -> bytes:
    """Read all bytes."""
    return begin(place, None)


def begin(place: Extent, count: int | None) -> bytes:
    """Read the first bytes, or all."""
    if isinstance(place, str):
        if is_url(place):
            return _get(place, 0, count)
        with regular.unbuffered(place) as file:
            return file.read(count)
    if len(place.data) == place.size:
        return place.data[:count]
    with _opened(place) as part:
        return part.readall() if count is None else part.read(count) or b""


@contextmanager
def opened(place: Extent, *, head: bool) -> Iterator[IO[bytes]]:
    """Give what Pillow reads: a file; or a part in memory, of which a ``head`` is read in pieces.

    Most formats need only the first piece to give their size; others may seek to any place. By a
    path, Pillow would map some files into memory, where an unreadable one kills the process.
    """
    if isinstance(place, str):
        with regular.opened(place) as image:
            yield image
    elif head or place.size > _AT_ONCE:
        with _opened(place) as part, io.BufferedReader(part, HEAD) as file:
            yield file
    else:
        yield io.BytesIO(read(place))


def state(place: Extent) -> tuple[int, int]:
    """Give the size and the time of a file, at a URL as they were listed."""
    if isinstance(place, Part):
        return place.size, place.mtime_ns
    found = os.stat(place)
    return found.st_size, found.st_mtime_ns


def mtime_ns(part: Part) -> int:
    """Say when the tar of a part was written to last."""
    return part.mtime_ns if is_url(part.path) else os.stat(part.path).st_mtime_ns


def pieces(part: Part) -> Iterator[bytes]:
    """Read a part in pieces."""
    with _opened(part) as opened:
        while data := opened.read(1 << 20):
            yield data


class _FarFile(RemoteFile):
    """A file at a URL, with the errors of inputs."""

    def _get(self, offset: int, size: int, stop: Event | None = None) -> bytes:
        with _explained():
            return super()._get(offset, size, stop)


def tar_file(path: str, size: int, start: int = 0, data: bytes = b"") -> TarFile:
    """Open a tar, of which all headers are read; ``data`` is what is known from a start on."""
    if is_url(path):
        return _FarFile(Url(path), size, start, data, least=_LEAST)
    return LocalFile(path)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FarError(errno.ENOENT, "it is no longer at the store") from None
    except StorageError as error:
        raise FarError(errno.EIO, error.what) from error


def _get(path: str, offset: int = 0, size: int | None = None) -> bytes:
    """Read some bytes at a URL, in one request if it does not fail."""
    with _explained():
        return Url(path).read_range(offset, size)


def _opened(part: Part) -> _Window:
    end = part.offset + part.size
    return _Window(part, tar_file(part.path, end, part.offset, part.data))


class _Window(io.RawIOBase):
    """A part of an open file, as a file."""

    def __init__(self, part: Part, file: TarFile) -> None:
        self._part, self._file, self._at = part, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._part.size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = start + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._next(_AT_ONCE), b""))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()

    def _next(self, count: int) -> bytes:
        size = min(count, max(self._part.size - self._at, 0), _AT_ONCE)
        data = self._file.pread(self._part.offset + self._at, size)
        if len(data) < size:
            raise CutOffError(errno.EIO, "its tar ends before it does")
        self._at += size
        return data
