"""Every exception Shardwright raises on purpose.

::

    ShardwrightError                         exit 1
    ├── UsageError       (ValueError)        exit 2   an argument makes no sense
    ├── InputMissingError (FileNotFoundError) exit 2  something we were told to read is not there
    ├── ShardExistsError (FileExistsError)   exit 1   packing would replace shards
    ├── MissingExtraError (ImportError)      exit 2   optional packages are not installed
    ├── SourceChangedError                   exit 1   an input changed while it was being read
    ├── DamageError                          exit 12  a file of ours is not as we wrote it
    ├── ProvenanceError                      exit 1   a component would be made in two ways
    ├── TooManyFailuresError                 exit 1   one input after the other failed
    ├── StorageError     (OSError)           exit 1   the file system refused something
    │   └── NoSpaceError                     exit 1   ... because it is full
    └── LockedError                          exit 11  another run is writing here

Foreign errors (OSError, msgspec, NumPy, tarfile) are turned into these at the border, so a caller
needs to catch one class. Where a built-in exception says the same thing, ours inherits it too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CURES = {
    errno.EACCES: "allow it, or work in another folder",
    errno.EPERM: "allow it, or work in another folder",
    errno.EROFS: "mount it for writing, or work in another folder",
    errno.EISDIR: "a file belongs there, so move that folder away",
}


class ShardwrightError(Exception):
    """What happened, to which file, and how to fix it: in words, and as attributes."""

    exit_code = 1

    def __init__(
        self, what: str, *, path: Path | str | None = None, fix: str | None = None
    ) -> None:
        place = f"{path}: " if path else ""
        super().__init__(f"{place}{what}; {fix}" if fix else place + what)
        self.what, self.path, self.fix = what, None if path is None else str(path), fix


class UsageError(ShardwrightError, ValueError):
    """An argument makes no sense."""

    exit_code = 2


class InputMissingError(ShardwrightError, FileNotFoundError):
    """A file or folder we were told to read is not there."""

    exit_code = 2


class ShardExistsError(ShardwrightError, FileExistsError):
    """Packing would replace shards that are already there."""


class MissingExtraError(ShardwrightError, ImportError):
    """Optional packages that this needs are not installed."""

    exit_code = 2


class SourceChangedError(ShardwrightError):
    """An input changed while it was being read."""


class DamageError(ShardwrightError):
    """A file of ours is not as we wrote it."""

    exit_code = 12


class ProvenanceError(ShardwrightError):
    """A component's arrays would be made in two ways in one store."""


class TooManyFailuresError(ShardwrightError):
    """One input after the other failed, so that the cause is hardly the inputs."""


class StorageError(ShardwrightError, OSError):
    """The file system refused something."""


class NoSpaceError(StorageError):
    """The file system is full, or would be."""


class LockedError(ShardwrightError):
    """Another run is writing here."""

    exit_code = 11


def refusal(path: Path, error: OSError) -> StorageError:
    """Say in our words what the file system refused, with the cure where there is one."""
    if error.errno in _FULL:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        space = os.statvfs(there)
        room = f"{space.f_bavail * space.f_frsize} bytes free"
        if space.f_files and not space.f_favail:
            room = "no inodes free, one of which every file needs"
        fix = "make room and run the same command again"
        return NoSpaceError(f"the disk is full ({room})", path=path, fix=fix)
    return StorageError(error.strerror or str(error), path=path, fix=_CURES.get(error.errno or 0))
