"""What lies in a store's folders: array files, and what interrupted runs left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shardwright.interrupts import check
from shardwright.storage.files import TMP_SUFFIX, explained
from shardwright.store.store import ARRAY_SUFFIX, Store


def names(folder: Path) -> Iterator[str]:
    """Give the names in a folder, in no order and without holding them; none if it is not there."""
    if folder.is_dir():
        with explained(folder), os.scandir(folder) as entries:
            for entry in entries:
                check()
                yield entry.name


def array_id(name: str) -> str | None:
    """Give the image_id for which a file of this name is an array, if it is one."""
    return name.removesuffix(ARRAY_SUFFIX) if name.endswith(ARRAY_SUFFIX) else None


def leftovers(store: Store) -> list[Path]:
    """Find the temporary files in a store's folders."""
    folders = [store.folder, *map(store.arrays, store.recipe.components)]
    return [
        folder / name
        for folder in folders
        for name in sorted(names(folder))
        if name.endswith(TMP_SUFFIX)
    ]
