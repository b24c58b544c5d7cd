"""The folders of a store."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright import files
from shardwright.errors import InputMissingError, NoSpaceError
from shardwright.progress import size
from shardwright.schema import COMPONENTS, JSONL_NAME, STATE_FOLDER
from shardwright.store import commands
from shardwright.store.journal import journal_path


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store's metadata, merged or not."""
    return (folder / JSONL_NAME).is_file() or journal_path(folder / JSONL_NAME).is_file()


def holds_shards(folder: Path) -> bool:
    """Whether a folder is one that shards were packed to, where no store can be."""
    manifest = folder / STATE_FOLDER / "manifest.json"
    return manifest.exists() or any(folder.glob("bucket_*/*.tar"))


def require_merged(derived_dir: Path, jsonl: Path) -> None:
    """Raise if there is a journal and no JSONL yet, as after a first run that was killed."""
    journal = journal_path(jsonl)
    if journal.is_file() and not jsonl.exists():
        raise InputMissingError(
            f"{jsonl}: not there yet, but {journal.name} is: an interrupted derive left its "
            f"records in that journal; to merge it, run {commands.derive(derived_dir, jsonl)}"
        )


def require_space(folder: Path, what: str, needed: int, instead: str = "") -> None:
    """Raise if the disk has less room than is needed."""
    free = files.free_bytes(folder)
    if needed > free:
        raise NoSpaceError(
            f"{folder}: {what} {size(needed)} and the disk has {size(free)} free; make room, "
            f"{instead}or continue with --ignore-space"
        )


def make_folders(derived_dir: Path, jsonl: Path) -> None:
    """Make the folders of a store, and durable what a killed run has left in them to be synced.

    This run will build on it, and syncs nothing that it finds. The caller holds the store's lock.
    """
    arrays = [derived_dir / component.folder for component in COMPONENTS]
    for folder in (jsonl.parent, *arrays):
        files.make_folder(folder)
    for folder in dict.fromkeys((derived_dir, jsonl.parent, derived_dir / STATE_FOLDER, *arrays)):
        files.sync_folder(folder)
    if os.access(derived_dir.parent, os.R_OK):  # if not, it is hardly we who made a folder there
        files.sync_folder(derived_dir.parent)
