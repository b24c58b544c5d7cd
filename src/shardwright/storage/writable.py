"""Where output may go: looked at before any work, so that it is known at once."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.errors import StorageError, UsageError


def require_writable(folder: Path) -> None:
    """Raise if a folder can be neither written to nor made."""
    places = (folder, *folder.parents)
    there = next((place for place in places if os.path.exists(place)), Path())
    if not there.is_dir():
        raise UsageError(f"{there}: is not a folder; give another to write to")
    if not os.access(there, os.W_OK | os.X_OK) or not _takes_files(there):
        raise StorageError(f"{there}: cannot be written to; allow it, or give another folder")


def _takes_files(folder: Path) -> bool:
    """Whether files can be made there: in /proc and its like one may, and then cannot."""
    if os.statvfs(folder).f_blocks:
        return True
    import tempfile  # here, because hardly anybody comes this far

    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
