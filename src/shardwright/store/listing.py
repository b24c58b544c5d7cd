"""What lies in a store's folders: array files, and what interrupted runs left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shardwright import schema
from shardwright.files import TMP_SUFFIX, explained

ARRAY_SUFFIX = ".npy"


def names(folder: Path) -> Iterator[str]:
    """Give the names in a folder, in no order and without holding them; none if it is not there."""
    if folder.is_dir():
        with explained(folder), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name


def array_id(name: str) -> str | None:
    """Give the image_id for which a file of this name is an array, if it is one."""
    return name.removesuffix(ARRAY_SUFFIX) if name.endswith(ARRAY_SUFFIX) else None


def leftovers(derived_dir: Path) -> list[Path]:
    """Find the temporary files in a store's folders."""
    folders = [derived_dir, *(derived_dir / component.folder for component in schema.COMPONENTS)]
    return [
        folder / name
        for folder in folders
        for name in sorted(names(folder))
        if name.endswith(TMP_SUFFIX)
    ]


def shown(name: str | Path) -> str:
    """Spell a name from a disk or a record so that terminals and logs can take it."""
    text = str(name)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
