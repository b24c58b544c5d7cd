"""Disks that fail or die at a chosen call, and what a folder looks like afterwards."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from shardwright.storage.disk import Disk


class Killed(BaseException):
    """The process is gone: nothing after this may reach the disk."""


@dataclass(frozen=True)
class Call:
    """One call of the disk: its name, and the path it is about."""

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} {self.path}"


class WatchedDisk(Disk):
    """Remembers its calls and lets a subclass step in before each of them.

    It does not wait for the real disk: what a power cut would lose is another test's business.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.open: dict[int, str] = {}
        self._lock = threading.Lock()  # arrays are written by many threads

    @property
    def names(self) -> list[str]:
        """Name the calls."""
        return [call.name for call in self.calls]

    def before(self, call: Call) -> None:
        """Let the call pass, or raise."""

    def tears(self, call: Call) -> bool:
        """Whether a write that does not pass is done in part."""
        return False

    def _meet(self, name: str, path: Path | str) -> None:
        call = Call(name, str(path))
        with self._lock:
            self.calls.append(call)
            self.before(call)

    def create(self, path: Path) -> int:
        self._meet("create", path)
        fd = super().create(path)
        self.open[fd] = str(path)
        return fd

    def append(self, path: Path) -> int:
        self._meet("append", path)
        fd = super().append(path)
        self.open[fd] = str(path)
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        try:
            self._meet("write", self.open[fd])
        except BaseException:
            if self.tears(Call("write", self.open[fd])):
                super().write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data)

    def bypass_cache(self, fd: int, bypass: bool) -> bool:
        self._meet("bypass_cache", self.open[fd])
        return super().bypass_cache(fd, bypass)

    def fsync(self, fd: int) -> None:
        self._meet("fsync", self.open[fd])

    def rename(self, source: Path, target: Path) -> None:
        self._meet("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._meet("link", target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._meet("unlink", path)
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._meet("mkdir", path)
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._meet("rmdir", path)
        super().rmdir(path)

    def fsync_folder(self, path: Path) -> None:
        self._meet("fsync_folder", path)


class KillingDisk(WatchedDisk):
    """Kills the process at its nth call, in the midst of it if it is a write; it stays dead."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def before(self, call: Call) -> None:
        if len(self.calls) >= self.at:
            raise Killed(str(call))

    def tears(self, call: Call) -> bool:
        return call == self.calls[self.at - 1]


class FailingDisk(WatchedDisk):
    """Fails at its nth call, once or from then on, with an error of the file system.

    A full disk still lets files be removed. To bypass the cache never fails: it answers no.
    """

    def __init__(self, at: int, number: int, *, once: bool) -> None:
        super().__init__()
        self.at, self.number, self.once = at, number, once
        self.failed: list[Call] = []

    def before(self, call: Call) -> None:
        now = len(self.calls)
        if now < self.at or (self.once and now > self.at):
            return
        removes = call.name in ("unlink", "rmdir")
        if call.name == "bypass_cache" or (self.number == errno.ENOSPC and removes):
            return
        self.failed.append(call)
        raise OSError(self.number, os.strerror(self.number))

    def tears(self, call: Call) -> bool:
        return True


def contents(folder: Path) -> dict[str, bytes | None]:
    """Give all that a folder holds, by path; folders are None, and the lock is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != "lock"
    }


def but_for_identity(folder: Path) -> dict[str, bytes | None]:
    """Give all that a store holds but its identity, which only its first run decides."""
    found = contents(folder)
    del found[".shardwright/identity.json"]
    return found
