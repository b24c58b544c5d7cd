"""Opens files: regular ones, and nothing else. All of Shardwright opens what is there through this.

Whoever opens a pipe waits for its other end, and a device may have no end. So a file is opened
without waiting, and then looked at. A link to a regular file is as good as the file, but only to
read it: what is written to could be a foreign file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from io import FileIO
from typing import BinaryIO

from shardwright.interrupts import POLL, check_in_threads

_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotRegularError(OSError):
    """What is there is a pipe, a socket or a device; or a link, where it is written to."""


def descriptor(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, folder_fd: int | None = None
) -> int:
    """Open a regular file and give its descriptor; raise an OSError for anything else."""
    if flags & os.O_CREAT:
        flags |= os.O_NOFOLLOW
    while True:
        try:
            fd = os.open(path, flags | _FLAGS, 0o644, dir_fd=folder_fd)
            break
        except BlockingIOError:  # another client has a lease on it, which is being revoked
            check_in_threads()
            time.sleep(POLL)
        except ValueError:  # a NUL in a path, which was read from a file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket; or, for writing, a pipe
                _require(path, os.stat(path, dir_fd=folder_fd).st_mode)
            if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
                raise NotRegularError(errno.ELOOP, "is a link; remove it", path) from None
            raise
    try:
        _require(path, os.fstat(fd).st_mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def opened(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, as ``open`` does; raise an OSError for anything else."""
    return open(path, "rb", buffering, opener=descriptor)


def unbuffered(path: str | os.PathLike[str]) -> FileIO:
    """Open a regular file for reading without a buffer."""
    return open(path, "rb", 0, opener=descriptor)


def read(path: str | os.PathLike[str]) -> bytes:
    """Read all of a regular file."""
    with unbuffered(path) as file:
        return file.read()


def kind(mode: int) -> str:
    """Say what is there instead of a regular file."""
    return f"is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file"


def _require(path: str | os.PathLike[str], mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise NotRegularError(errno.ESPIPE, kind(mode), os.fspath(path))
