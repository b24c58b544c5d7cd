"""A folder of this machine as a place for files, by their names below it.

``remote.RemotePlace`` has the same methods.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

from shardwright import regular
from shardwright.errors import LockedError, NoSpaceError, StorageError, UsageError, refusal
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.progress import size
from shardwright.storage import files
from shardwright.storage.files import NewFile
from shardwright.storage.sinks import Hasher

BUFFER = 1 << 18  # bytes read at a time: few enough to stay in the CPU cache while hashed
_KEPT = 64  # buffers, 16 MiB: more than most samples have
_LOCK = f"{STATE_FOLDER}/lock"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Readable(Protocol):
    """A file that can be read at any place."""

    size: int

    def pread(self, offset: int, size: int, /) -> bytes:
        """Read some bytes; fewer only at the end."""


class Found(NamedTuple):
    """A file; or a folder that cannot be read."""

    path: str
    state: tuple[int, int] | None = None  # its size and time, where a listing has them
    fault: str | None = None  # of a folder: why it cannot be read


class LocalFile:
    """An open local file."""

    def __init__(self, path: Path | str) -> None:
        self._fd = regular.descriptor(path)
        self.size = os.fstat(self._fd).st_size
        if hasattr(os, "posix_fadvise"):  # to read further ahead; macOS has none
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def pread(self, offset: int, size: int) -> bytes:
        """Read some bytes; fewer only at the end."""
        return os.pread(self._fd, size, offset)

    def ahead_of_need(self, offset: int, size: int) -> bytes:
        """Read nothing: whoever needs it later reads it as fast."""
        return b""

    def in_one_pass(self) -> Self:
        """Give the file to look through: what is asked for again is read again as fast."""
        return self


class OnePass:
    """A file that is read once from its start to its end, whatever is asked of it, and hashed.

    So a shard at a URL is fetched once, in ranges ahead, although its samples are looked at in
    detail. What was read last is kept.
    """

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


@dataclass(frozen=True)
class LocalPlace:
    """A local folder."""

    folder: Path
    can_replace = True  # and rename; a lock keeps other writers out
    reads_are_requests = False
    fix_if_unseen = "use a folder on a shared file system, or the URL of an object store"

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Find the files whose paths below the folder match a pattern."""
        found = (path for pattern in patterns for path in self.folder.glob(pattern))
        return [path.relative_to(self.folder).as_posix() for path in found]

    def list(
        self, suffix: str | tuple[str, ...], *, nested: bool = False, skip: Collection[str] = ()
    ) -> Iterator[tuple[str, int]]:
        """Give the name and size of each visible file of this suffix.

        Folders with their own state, which were packed on their own, are left out unless
        ``nested``; so is what to ``skip`` directly below.
        """
        for root, folders, names in os.walk(self.folder, followlinks=True):  # to another disk
            left = skip if Path(root) == self.folder else ()
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".")
                and name not in left
                and (nested or not Path(root, name, STATE_FOLDER).exists())
            ]
            for name in names:
                check()
                if name.endswith(suffix) and not name.startswith("."):
                    path = Path(root, name)
                    # A broken link is reported when it is opened.
                    size = path.stat().st_size if path.exists() else 0
                    yield str(path.relative_to(self.folder)), size

    def walk(self, warn: Callable[[str], None]) -> Iterator[Iterable[Found]]:
        """Give all files below, those of one folder together, but none that is hidden.

        Links to files are followed. Those to folders are skipped with a warning, because they may
        lead in circles.
        """
        faults: list[Found] = []

        def note(error: OSError) -> None:
            if error.filename != str(self.folder):
                faults.append(Found(error.filename, fault=error.strerror or str(error)))
            elif self.folder.is_dir():
                raise refusal(self.folder, error) from error

        for root, folders, names in os.walk(self.folder, onerror=note):
            found: list[Found] = []
            for name in names:
                check()
                if not name.startswith("."):
                    found.append(Found(os.path.join(root, name)))
            yield found
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (os.path.join(root, name) for name in folders):
                if os.path.islink(path):
                    warn(f"{path}: skipped, because it is a link to a folder")
        yield faults

    def as_file(self) -> Found | None:
        """Give the file that is there instead of a folder, if it is one."""
        return Found(str(self.folder)) if self.folder.is_file() else None

    def open(self, name: str) -> LocalFile:
        """Open a file for reading; the caller handles OSErrors."""
        return LocalFile(self.folder / name)

    def create(self, name: str, hashers: Sequence[Hasher] = ()) -> NewFile:
        """Begin a file, in an existing folder; ``seal`` it, then ``publish`` its name."""
        return NewFile(self.folder / name, hashers)

    def publish(self, name: str, condition: str | None = None) -> str:
        """Give a sealed file its name. Follow with ``files.sync_folder``, once a folder.

        ``condition`` is ignored: the lock keeps others out. There is no etag to give.
        """
        files.publish(self.folder / (name + files.TMP_SUFFIX), self.folder / name)
        return ""

    def discard(self, name: str) -> None:
        """Remove a file that was begun and is not published."""
        files.remove(self.folder / (name + files.TMP_SUFFIX))

    def settle(self, names: Sequence[str]) -> dict[str, str]:
        """Leave sealed files to the one who publishes them, together."""
        return {}

    def abandon(self, names: Collection[str] | None = None) -> None:
        """Do nothing: the next run here removes what is half written."""

    def write(self, name: str, data: bytes, condition: str | None = None) -> str:
        """Write a file; ``condition`` is ignored, and there is no etag, as in ``publish``."""
        files.write(self.folder / name, data)
        return ""

    def claim(self, name: str, data: bytes) -> bool:
        """Write a file, whatever is there: a lock keeps others out."""
        files.write(self.folder / name, data)
        return True

    def etag(self, name: str) -> str:
        """Give nothing to compare: a lock keeps others from replacing files."""
        return ""

    def etags(self) -> dict[str, str]:
        """Name none, for the same reason."""
        return {}

    def replaced(self, etags: Mapping[str, str]) -> frozenset[str]:
        """Name none, for the same reason."""
        return frozenset()

    def remove_all(self, keep: Collection[str] = ()) -> None:
        """Remove all files below, except those of some names, and the folders that are empty."""
        for path in sorted(self.folder.rglob("*")):
            check()
            if path.name not in keep and (path.is_symlink() or path.is_file()):
                files.remove(path)
        files.remove_empty_folders(self.folder)

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Give the sizes of those of some files that are there."""
        found = {name: self.folder / name for name in names}
        return {name: path.stat().st_size for name, path in found.items() if path.is_file()}

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Give what a function that reads here makes of each item."""
        return map(function, items)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Lock the folder for one writer; a second one fails at once, and names the first.

        The kernel drops the lock when its holder dies, so no lock is ever stale. The file stays: if
        it were removed, two runs could lock two different files of one name.
        """
        path = self.folder / _LOCK
        files.make_folder(path.parent)
        with files.explained(path):
            fd = regular.descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            self._claim(fd)
            with suppress(OSError):  # the holder's name is only a help; a full disk has no room
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
            yield
            with suppress(OSError):
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def require_unlocked(self) -> None:
        """Raise before any work if another run is writing here."""
        path = self.folder / _LOCK
        if path.is_file():
            with files.explained(path), regular.opened(path) as file:
                self._claim(file.fileno())

    def _claim(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another run"
            fix = "wait until it has ended, or stop it"
            raise LockedError(f"{holder} is writing here", path=self.folder, fix=fix) from None

    def require_conditions(self) -> None:
        """Do nothing: a lock keeps writers apart."""

    def require_writable(self) -> None:
        """Raise before any work if the folder cannot be made or written to."""
        there = self.nearest()
        if not there.is_dir():
            raise UsageError("is not a folder", path=there, fix="give another to write to")
        if not os.access(there, os.W_OK | os.X_OK) or not _takes_files(there):
            fix = "change its permissions, or give another folder"
            raise StorageError("cannot write to this folder", path=there, fix=fix)

    def require_space(self, what: str, needed: int, instead: str = "") -> None:
        """Raise if the disk has less free space than needed."""
        if needed > (free := self.free_bytes()):
            what = f"{what} {size(needed)} and the disk has {size(free)} free"
            fix = f"make room, {instead}or continue with --ignore-space"
            raise NoSpaceError(what, path=self.folder, fix=fix)

    def nearest(self, name: str = "") -> Path:
        """Give a folder below this one, or the nearest above it that is there."""
        folder = self.folder / name
        return next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path())

    def free_bytes(self) -> int:
        """Count the free bytes in the folder, or where it would be made."""
        return shutil.disk_usage(self.nearest()).free


def _takes_files(folder: Path) -> bool:
    """Whether files can be made there: /proc and the like allow it, and then fail."""
    if os.statvfs(folder).f_blocks:
        return True
    import tempfile  # here, because it is rarely needed

    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
