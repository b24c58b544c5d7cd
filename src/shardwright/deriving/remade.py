"""Which arrays a recompute has already replaced, so that one that was cut short goes on.

While a component is recomputed with the settings it has, the old arrays stay until new ones take
their places, and the two cannot be told apart by looking; nor, with other settings, can arrays of
a caption and of one that has been edited since. ``DERIVED_DIR/.shardwright`` has a list
of the ids whose arrays are new, ``remade-COMPONENT.jsonl``, for as long as that lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from shardwright.deriving.plan import ImageToDerive
from shardwright.recipe import Component
from shardwright.storage import files
from shardwright.storage.files import AppendFile
from shardwright.store.store import Store


def read(store: Store, component: Component) -> set[str]:
    """Read the ids; a line that is torn names none, so its array is made once more."""
    found = set()
    path = _path(store, component)
    if path.is_file():
        with files.explained(path):
            lines = path.read_bytes().split(b"\n")
        for line in lines[:-1]:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.add(msgspec.json.decode(line, type=str))
    return found


def remove(store: Store, components: Iterable[Component]) -> None:
    """Forget what was remade."""
    for component in components:
        files.remove(_path(store, component))
    files.sync_folder(store.state)


class Remade:
    """The lists of a run, open for writing."""

    def __init__(self, store: Store, components: Iterable[Component]) -> None:
        self.components = frozenset(components)
        self._lists = {c: AppendFile(_path(store, c)) for c in self.components}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._lists.values():
            file.close()

    def add(self, tasks: Iterable[ImageToDerive]) -> None:
        """Note what is done: the new arrays are on the disk, and the records with them."""
        done = list(tasks)
        for component, file in self._lists.items():
            ids = [task.source.image_id for task in done if component in task.make]
            file.commit(b"".join(msgspec.json.encode(image_id) + b"\n" for image_id in ids))


def _path(store: Store, component: Component) -> Path:
    return store.state / f"remade-{component.name}.jsonl"
