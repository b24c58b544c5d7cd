"""The folders of a store."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import InputMissingError
from shardwright.layout import JSONL_NAME, STATE_FOLDER
from shardwright.store import commands
from shardwright.store.store import Store


def is_store(folder: Path) -> bool:
    """Whether a folder holds a store's metadata, merged or not."""
    store = Store(folder, folder / JSONL_NAME)
    return store.jsonl.is_file() or store.journal.is_file()


def holds_shards(folder: Path) -> bool:
    """Whether a folder is one that shards were packed to, where no store can be."""
    manifest = folder / STATE_FOLDER / "manifest.json"
    return manifest.exists() or any(folder.glob("bucket_*/*.tar"))


def require_merged(store: Store) -> None:
    """Raise if there is a journal and no JSONL yet, as after a first run that was killed."""
    if store.journal.is_file() and not store.jsonl.exists():
        raise InputMissingError(
            f"{store.jsonl}: not there yet, but {store.journal.name} is: an interrupted derive "
            f"left its records in that journal; to merge it, run {commands.derive(store)}"
        )
