"""The folders of a store, and the files in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shardwright.errors import InputMissingError, StorageError
from shardwright.interrupts import check
from shardwright.layout import BUCKET_PREFIX, JSONL_NAME, STATE_FOLDER
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.storage.paths import exists
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, names
from shardwright.store import commands
from shardwright.store.records import NOT_JSON
from shardwright.store.store import Store

_MANIFEST = "manifest.json"  # of a shard folder


def is_store(folder: Location) -> bool:
    """Whether a folder holds the metadata of a store, merged or in a journal."""
    jsonl = str(folder / JSONL_NAME)
    return exists(jsonl) or exists(jsonl + files.TMP_SUFFIX)


def holds_shards(folder: Location) -> bool:
    """Whether shards were packed into a folder, or its parts, so that no store may use it."""
    manifest = folder / STATE_FOLDER / _MANIFEST
    listed = names(folder)
    buckets = (name for name in listed if name.startswith(BUCKET_PREFIX))
    return (
        manifest.is_file()
        or any(name.endswith(".tar") for bucket in buckets for name in names(folder / bucket))
        # A store may have shard folders below it, and a split may be among these.
        or (not is_store(folder) and _is_split(folder, listed))
    )


def _is_split(folder: Location, listed: list[str]) -> bool:
    """Whether the manifest of a folder below says that it is the part of that name."""

    def is_part(name: str) -> bool:
        try:
            data = files.read(folder / name / STATE_FOLDER / _MANIFEST)
            runs = msgspec.json.decode(data)["runs"]
            return any(run["settings"].get("part") == name for run in runs)
        except StorageError:  # of an object store, which is out of reach
            raise
        except (OSError, KeyError, TypeError, AttributeError, *NOT_JSON):
            return False

    return any(place_at(folder).each(is_part, listed))


def require_merged(store: Store) -> None:
    """Raise if there is a journal but no JSONL, as after a first run that was killed."""
    if store.journal.is_file() and not store.jsonl.exists():
        raise InputMissingError(
            f"no such file yet; an interrupted derive left its records in {store.journal.name}",
            path=store.jsonl,
            fix=f"to merge them, run {commands.derive(store)}",
        )


def array_ids(store: Store, component: Component) -> Iterator[str]:
    """List the ids that have an array of a component, in any order, one at a time."""
    end = component.extension
    return (n.removesuffix(end) for n in _names(store.arrays(component)) if n.endswith(end))


def leftovers(store: Store) -> list[Path]:
    """Find the temporary files in a store's folders."""
    folders = [store.folder, *map(store.arrays, store.recipe.components)]
    return [
        folder / name
        for folder in folders
        for name in sorted(_names(folder))
        if name.endswith(files.TMP_SUFFIX)
    ]


def _names(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        with files.explained(folder), os.scandir(folder) as entries:
            for entry in entries:
                check()
                yield entry.name
