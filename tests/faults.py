"""Disks that fail or die at a chosen call, and what a folder looks like afterwards."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from shardwright.files import Disk


class Killed(BaseException):
    """The process is gone: nothing after this may reach the disk."""


class Counting(Disk):
    """Notes the calls; ``meet`` is asked before each.

    It does not really sync: what was written survives everything but a power cut anyway.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._lock = threading.Lock()  # arrays are written by many threads

    def meet(self, count: int, call: str) -> None:
        """Let the call pass, or raise."""

    def _meet(self, call: str) -> None:
        with self._lock:
            self.calls.append(call)
            self.meet(len(self.calls), call)

    def create(self, path: Path) -> int:
        self._meet("create")
        return super().create(path)

    def append(self, path: Path) -> int:
        self._meet("append")
        return super().append(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        try:
            self._meet("write")
        except BaseException as fault:
            if self.tears(fault):
                super().write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data)

    def tears(self, fault: BaseException) -> bool:
        """Whether the write at which this happens is done in part."""
        return False

    def fsync(self, fd: int) -> None:
        self._meet("fsync")

    def rename(self, source: Path, target: Path) -> None:
        self._meet("rename")
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._meet("link")
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._meet("unlink")
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._meet("mkdir")
        super().mkdir(path)

    def fsync_folder(self, path: Path) -> None:
        self._meet("fsync_folder")


class KilledAt(Counting):
    """Dies at the nth call, in the midst of it if it is a write, and stays dead."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.nth = nth

    def meet(self, count: int, call: str) -> None:
        if count >= self.nth:
            raise Killed(count)

    def tears(self, fault: BaseException) -> bool:
        return fault.args == (self.nth,)


class FailsAt(Counting):
    """Fails the nth call once with an error of the system."""

    def __init__(self, nth: int, number: int) -> None:
        super().__init__()
        self.nth, self.number = nth, number

    def meet(self, count: int, call: str) -> None:
        if count == self.nth:
            raise OSError(self.number, os.strerror(self.number))

    def tears(self, fault: BaseException) -> bool:
        return True


class FullFrom(FailsAt):
    """Has no room left from the nth call on; names can still be removed."""

    def meet(self, count: int, call: str) -> None:
        if count >= self.nth and call in ("create", "append", "write", "link", "mkdir"):
            raise OSError(self.number, os.strerror(self.number))


def contents(folder: Path) -> dict[str, bytes | None]:
    """Give all that a folder holds, by path; folders are None, and the lock is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != "lock"
    }
