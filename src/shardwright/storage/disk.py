"""The primitive calls that change what is on disk; ``files.using`` replaces them in tests."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shardwright import regular

_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it; elsewhere the cache is used


class Disk:
    """The calls that change what is on disk, one method each."""

    def create(self, path: Path) -> int:
        """Open a new file for writing; it must not exist."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append(self, path: Path) -> int:
        """Open a file for writing at its end; it need not exist."""
        return regular.descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write some of the data and return how many bytes."""
        return os.write(fd, data)

    def bypass_cache(self, fd: int, bypass: bool) -> bool:
        """Switch direct writes on or off; return whether they are on now."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _DIRECT if bypass else flags & ~_DIRECT)
        except OSError:
            return False
        return bypass and _DIRECT != 0

    def fsync(self, fd: int) -> None:
        """Wait until a file's bytes are on the disk."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Replace the target by the source in one step."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; it must not exist."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Make one folder."""
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        """Remove one empty folder."""
        os.rmdir(path)

    def fsync_folder(self, path: Path) -> None:
        """Wait until a folder's names are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
