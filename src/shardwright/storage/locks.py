"""Only one run at a time writes to a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardwright import regular
from shardwright.errors import LockedError
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files


def require_unlocked(folder: Path) -> None:
    """Raise before any work if another run is writing to a folder."""
    path = folder / STATE_FOLDER / "lock"
    if path.is_file():
        with files.explained(path), regular.opened(path) as file:
            _claim(file.fileno(), folder)


def _claim(fd: int, folder: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another run"
        fix = "wait until it has ended, or stop it"
        raise LockedError(f"{holder} is writing here", path=folder, fix=fix) from None


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder for one writer; a second one fails at once with an error that names the first.

    The kernel drops the lock when its holder dies, so no lock is ever stale. The file stays: if it
    were removed, two runs could lock two different files of one name.
    """
    files.make_folder(folder / STATE_FOLDER)
    path = folder / STATE_FOLDER / "lock"
    with files.explained(path):
        fd = regular.descriptor(path, os.O_RDWR | os.O_CREAT)
    try:
        _claim(fd, folder)
        with suppress(OSError):  # the holder's name is only a help; a full disk has no room for it
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
