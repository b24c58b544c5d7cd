"""Every durable file operation; ``disk`` is the seam through which faults are injected.

A file is published completely or not at all: written under a temporary name, its length checked,
synced, renamed, and the folder synced. ``Disk`` holds the primitive calls; a test replaces it with
``using`` to fail or kill at any of them.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shardwright import regular
from shardwright.errors import ShardwrightError, StorageError, refusal
from shardwright.interrupts import check
from shardwright.storage.disk import Disk
from shardwright.storage.sinks import Hasher, Sink
from shardwright.storage.urls import Location, Url

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

TMP_SUFFIX = ".tmp"
_ALIGNMENT = 4096  # of what bypasses the cache
_GATHERED = 1 << 22  # bytes at a time: large enough that a disk is never idle between two
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


_disk = Disk()


@contextmanager
def using(disk: Disk) -> Iterator[None]:
    """Send every durable operation through another disk, for as long as the block runs."""
    global _disk
    previous, _disk = _disk, disk
    try:
        yield
    finally:
        _disk = previous


class NewFile(Sink):
    """A file that gets its name only when it is complete; until then it is at ``tmp``.

    Either ``write`` to it, or ``put`` bytes: these are gathered in one buffer while a thread writes
    and hashes the other. Full buffers bypass the cache where the file system allows it: shards are
    larger than memory and would push out what is read again, and the disk would idle until a final
    fsync of gigabytes. Then ``seal`` it (length check and fsync), then ``publish`` it.
    """

    def __init__(
        self, path: Path, hashers: Sequence[Hasher] = (), *, tmp: Path | None = None
    ) -> None:
        self.path, self._hashers = path, hashers
        self.tmp = tmp or path.with_name(path.name + TMP_SUFFIX)
        self._direct: bool | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None  # the other buffer
        with explained(self.tmp):
            try:
                self._fd = _disk.create(self.tmp)
            except FileExistsError:  # left by a run that was killed: we hold the lock it held
                _disk.unlink(self.tmp)
                self._fd = _disk.create(self.tmp)

    def __exit__(self, *_: object) -> None:
        try:
            if self._writer is not None:
                self._writer.shutdown()  # before the file is closed
        finally:
            super().__exit__()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes at once."""
        view = memoryview(data)
        with explained(self.tmp):
            while view:
                count = _disk.write(self._fd, view)
                view = view[count:]
                self.written += count

    def hasten(self) -> None:
        """Start writing back what is in the cache, so that ``seal`` waits less."""
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def seal(self, length: int) -> None:
        if self._writer is not None:
            self._flush()
            self._wait()
        with explained(self.tmp):
            found = os.fstat(self._fd).st_size
            if found != length:
                what = f"wrote {length} bytes, but the disk holds {found}"
                raise StorageError(what, path=self.tmp)
            # A failed fsync may have dropped the very pages it failed on, so it is never retried.
            _disk.fsync(self._fd)
            self._close()
        self._sealed = True

    def discard(self) -> None:
        with suppress(OSError):  # the error that brought us here is the one to report
            self._close()
        with suppress(OSError):
            _disk.unlink(self.tmp)

    def _close(self) -> None:
        # Even if this fails the descriptor is closed, and its number may soon be another's.
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _room(self) -> int:
        if self._writer is None:
            from concurrent.futures import ThreadPoolExecutor  # here, to keep the start light

            self._writer = ThreadPoolExecutor(1)
            # Memory maps begin on a page boundary, as what bypasses the cache must.
            self._buffer, self._other = (memoryview(mmap.mmap(-1, _GATHERED)) for _ in range(2))
        elif self._used == _GATHERED:
            self._flush()
        return _GATHERED - self._used

    def _flush(self) -> None:
        """Hand the buffer to the writer, and continue with the other once that is written."""
        self._wait()
        assert self._writer is not None
        self._writing = self._writer.submit(self._write_out, self._buffer[: self._used])
        self._buffer, self._other = self._other, self._buffer
        self._used = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_out(self, gathered: memoryview) -> None:
        self._hash(gathered)
        if self._direct is None and len(gathered) == _GATHERED:
            self._direct = _disk.bypass_cache(self._fd, True)
        elif self._direct and len(gathered) % _ALIGNMENT:
            self._direct = _disk.bypass_cache(self._fd, False)
        before = self.written
        try:
            self.write(gathered)
        except StorageError as error:
            # Some file systems take the flag and then refuse the writes: use the cache with them.
            refused = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL
            if not (self._direct and refused):
                raise
            self._direct = _disk.bypass_cache(self._fd, False)
            self.write(gathered[self.written - before :])


class AppendFile:
    """A file that grows by groups of bytes, each on the disk before the next begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(path):
            self._fd = _disk.append(path)
            _disk.fsync_folder(path.parent)

    def commit(self, data: bytes) -> None:
        """Append bytes and wait until they are on the disk."""
        view = memoryview(data)
        with explained(self.path):
            while view:
                view = view[_disk.write(self._fd, view) :]
            _disk.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def publish(tmp: Path, path: Path) -> None:
    """Give a sealed file its name, or discard it. Follow with ``sync_folder``, once a folder."""
    try:
        move(tmp, path)
    except StorageError:
        with suppress(OSError):  # the error that brought us here is the one to report
            _disk.unlink(tmp)
        raise


def move(path: Path, target: Path) -> None:
    """Put a file in another's place. Follow with ``sync_folder``."""
    with explained(target):
        _disk.rename(path, target)


def sync_folder(folder: Location) -> None:
    """Make the names in a folder durable; at an object store they are."""
    if isinstance(folder, Path):
        with explained(folder):
            _disk.fsync_folder(folder)


def sync_parent(folder: Location) -> None:
    """Make the name of a folder durable; in a parent that we cannot read we did not make it."""
    if isinstance(folder, Path) and os.access(folder.parent, os.R_OK):
        sync_folder(folder.parent)


def write(path: Location, data: bytes) -> None:
    """Write a file completely or not at all, replacing what was there."""
    if isinstance(path, Url):
        path.write(data)
        return
    with NewFile(path) as file:
        file.write(data)
        file.seal(len(data))
    publish(file.tmp, path)
    sync_folder(path.parent)


def prepare(path: Location, data: bytes) -> None:
    """Write a file under a temporary name, with its folder; not at a URL, which has none."""
    if isinstance(path, Path):
        make_folder(path.parent)
        with NewFile(path) as file:
            file.put(data)
            file.seal(len(data))


def keep(path: Path, name: Path) -> None:
    """Give a file a second name, under which it stays when it is replaced.

    Follow with ``sync_folder``.
    """
    with explained(name):
        try:
            _disk.link(path, name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with regular.opened(path) as source, NewFile(name) as file:
                while piece := source.read(1 << 20):
                    check()
                    file.put(piece)
                file.seal(source.tell())
            publish(file.tmp, name)


def read(path: Location) -> bytes:
    """Read a file; raise an OSError if it is missing, or not a regular file."""
    return regular.read(path) if isinstance(path, Path) else path.read_bytes()


def reopened(path: Location) -> Callable[[], BinaryIO]:
    """Give what opens a file, as often as it is called; from a URL it is fetched once."""
    if isinstance(path, Path):
        return lambda: regular.opened(path)
    data = path.read_bytes()
    return lambda: BytesIO(data)


def absence(path: Location) -> str:
    """Say why a path is not that of a regular file."""
    if isinstance(path, Path) and path.exists():
        return regular.kind(path.stat().st_mode)
    return "no such file"


def read_existing(paths: Mapping[str, Location]) -> dict[str, bytes]:
    """Read those of some files that exist, by the same names."""
    found = {}
    for name, path in paths.items():
        with explained(path), suppress(FileNotFoundError):
            found[name] = read(path)
    return found


def remove(path: Location) -> None:
    """Remove a file if it is there."""
    if isinstance(path, Url):
        path.remove()
        return
    with explained(path), suppress(FileNotFoundError):
        _disk.unlink(path)


def withdraw(path: Location) -> None:
    """Remove a file durably, so that no power cut brings it back."""
    if path.is_file():
        remove(path)
        sync_folder(path.parent)


def make_folder(path: Location) -> None:
    """Make a folder and its parents, durably; an object store has none."""
    if isinstance(path, Url) or path.is_dir():
        return
    make_folder(path.parent)
    with explained(path):
        with suppress(FileExistsError):
            _disk.mkdir(path)
        _disk.fsync_folder(path.parent)


def state(fd: int) -> tuple[int, int]:
    """Give the size and modification time of a file, to notice a change."""
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns


def remove_empty_folders(path: Location) -> None:
    """Remove a folder and those in it, as far as they hold no files."""
    if isinstance(path, Url) or not path.is_dir():
        return
    for child in path.iterdir():
        remove_empty_folders(child)
    with explained(path):
        if not os.listdir(path):
            _disk.rmdir(path)
            _disk.fsync_folder(path.parent)


@contextmanager
def explained(path: Location | None = None) -> Iterator[None]:
    """Turn an OSError into one of ours, of this path or else the error's own."""
    try:
        yield
    except ShardwrightError:
        raise
    except OSError as error:
        path = path or Path(os.fsdecode(error.filename or "disk"))
        if isinstance(path, Url):
            raise StorageError(error.strerror or str(error), path=path) from error
        raise refusal(path, error) from error
