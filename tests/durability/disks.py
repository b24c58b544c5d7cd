"""Disks that fail: at one call, from one call on, or by ending the process there."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from shardwright.files import Disk
from tests.faults import Killed


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

    def before(self, call: Call, data: bytes | memoryview = b"", fd: int = -1) -> None:
        """Step in."""

    def _meet(
        self, name: str, path: Path | str, data: bytes | memoryview = b"", fd: int = -1
    ) -> None:
        call = Call(name, str(path))
        self.calls.append(call)
        self.before(call, data, fd)

    def create(self, path: Path) -> int:
        self._meet("create", path)
        fd = super().create(path)
        self.open[fd] = str(path)
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._meet("write", self.open[fd], data, fd)
        return super().write(fd, data)

    def bypass_cache(self, fd: int, bypass: bool) -> bool:
        self._meet("bypass_cache", self.open[fd])
        return super().bypass_cache(fd, bypass)

    def fsync(self, fd: int) -> None:
        self._meet("fsync", self.open[fd])

    def rename(self, source: Path, target: Path) -> None:
        self._meet("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._meet("unlink", path)
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._meet("mkdir", path)
        super().mkdir(path)

    def fsync_folder(self, path: Path) -> None:
        self._meet("fsync_folder", path)


class KillingDisk(WatchedDisk):
    """Kills the process at its nth call; a write gets half of its bytes out first."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def before(self, call: Call, data: bytes | memoryview = b"", fd: int = -1) -> None:
        if len(self.calls) >= self.at:
            if len(self.calls) == self.at and call.name == "write":
                os.write(fd, memoryview(data)[: len(data) // 2])
            raise Killed(str(call))


class FailingDisk(WatchedDisk):
    """Fails at its nth call, once or from then on, with an error of the file system.

    A full disk still lets files be removed. To bypass the cache never fails: it answers no.
    """

    def __init__(self, at: int, number: int, *, once: bool) -> None:
        super().__init__()
        self.at, self.number, self.once = at, number, once
        self.failed: list[Call] = []

    def before(self, call: Call, data: bytes | memoryview = b"", fd: int = -1) -> None:
        now = len(self.calls)
        if now < self.at or (self.once and now > self.at):
            return
        if call.name == "bypass_cache" or (self.number == errno.ENOSPC and call.name == "unlink"):
            return
        self.failed.append(call)
        raise OSError(self.number, os.strerror(self.number))
