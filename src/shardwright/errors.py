"""Every exception Shardwright raises on purpose.

::

    ShardwrightError                         exit 1
    ├── UsageError       (ValueError)        exit 2   an argument makes no sense
    ├── InputMissingError (FileNotFoundError) exit 2  a file or folder to read is not there
    ├── ShardExistsError (FileExistsError)   exit 1   packing would replace shards
    ├── MissingExtraError (ImportError)      exit 2   optional packages are not installed
    ├── SourceChangedError                   exit 1   an input changed while it was read
    ├── DamageError                          exit 12  a file that Shardwright wrote has changed
    ├── ProvenanceError                      exit 1   one component would be made in two ways
    ├── OutdatedError                        exit 1   packed samples are not what the store holds
    ├── TooManyFailuresError                 exit 1   too many inputs failed in a row
    ├── StorageError     (OSError)           exit 1   a file operation failed
    │   └── NoSpaceError                     exit 1   ... because the disk is full
    └── LockedError                          exit 11  another run is writing here

Errors of others (OSError, msgspec, NumPy, tarfile) are converted to these where they occur, so a
caller catches one class. Where a built-in exception means the same, ours inherits from it too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ALLOW = "allow it, or work in another folder"
_FIXES = {
    errno.EACCES: _ALLOW,
    errno.EPERM: _ALLOW,
    errno.EROFS: "mount it for writing, or work in another folder",
    errno.EISDIR: "a file belongs there, so move that folder away",
    errno.ESPIPE: "put the file itself there",
}


class ShardwrightError(Exception):
    """What happened, to which file, and how to fix it: as text and as attributes."""

    exit_code = 1

    def __init__(self, what: str, *, path: object = None, fix: str | None = None) -> None:
        place = f"{path}: " if path else ""
        super().__init__(f"{place}{what}; {fix}" if fix else place + what)
        self.what, self.path, self.fix = what, None if path is None else str(path), fix


class UsageError(ShardwrightError, ValueError):
    """An argument makes no sense."""

    exit_code = 2


class InputMissingError(ShardwrightError, FileNotFoundError):
    """A file or folder to read is not there."""

    exit_code = 2


class ShardExistsError(ShardwrightError, FileExistsError):
    """Packing would replace shards that are already there."""


class MissingExtraError(ShardwrightError, ImportError):
    """Optional packages that this needs are not installed."""

    exit_code = 2


class SourceChangedError(ShardwrightError):
    """An input changed while it was read."""


class DamageError(ShardwrightError):
    """A file that Shardwright wrote has changed since."""

    exit_code = 12


class ProvenanceError(ShardwrightError):
    """One store would hold arrays of a component made in two ways."""


class OutdatedError(ShardwrightError):
    """Packed samples are no longer what the store holds."""


class TooManyFailuresError(ShardwrightError):
    """So many inputs failed in a row that the cause is probably elsewhere."""


class StorageError(ShardwrightError, OSError):
    """A file operation failed."""


class NoSpaceError(StorageError):
    """The disk is full, or would be."""


class LockedError(ShardwrightError):
    """Another run is writing here."""

    exit_code = 11


def refusal(path: Path, error: OSError) -> StorageError:
    """Convert an OSError, with a fix where one is known."""
    if error.errno in _FULL:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        space = os.statvfs(there)
        room = f"{space.f_bavail * space.f_frsize} bytes free"
        if space.f_files and not space.f_favail:
            room = "no inodes free, and every file needs one"
        fix = "make room and run the same command again"
        return NoSpaceError(f"the disk is full ({room})", path=path, fix=fix)
    return StorageError(error.strerror or str(error), path=path, fix=_FIXES.get(error.errno or 0))
