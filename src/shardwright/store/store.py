"""A store as one value: its paths and its recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from shardwright.errors import DamageError
from shardwright.layout import JSONL_NAME, STATE_FOLDER
from shardwright.recipes import SPECIFICATION, Component, Recipe
from shardwright.storage import files
from shardwright.store.journal import journal_path

ARRAY_SUFFIX = ".npy"
_RECIPE = "recipe.json"
_EMPTY = "empty"


@dataclass(frozen=True)
class Store:
    """A Stage 2 store: a folder of records and arrays."""

    folder: Path
    jsonl: Path
    recipe: Recipe = SPECIFICATION

    @classmethod
    def at(cls, folder: Path, jsonl: Path | None = None) -> Self:
        """Find the store in a folder, and its recipe."""
        path = folder / STATE_FOLDER / _RECIPE
        recipe = SPECIFICATION
        if path.exists():
            with files.explained(path):
                data = path.read_bytes()
            try:
                recipe = msgspec.json.decode(data, type=Recipe)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                what = f"is not a recipe ({error})"
                raise DamageError(what, path=path, fix="restore it") from None
        return cls(folder, jsonl or folder / JSONL_NAME, recipe)

    def of(self, jsonl: str) -> Store:
        """Give the store with another JSONL, whose path is relative to the folder."""
        return replace(self, jsonl=Path(os.path.normpath(self.folder / jsonl)))

    @property
    def state(self) -> Path:
        """Give the folder of everything but records and arrays."""
        return self.folder / STATE_FOLDER

    @property
    def journal(self) -> Path:
        """Give the file for the records of an unfinished run."""
        return journal_path(self.jsonl)

    def arrays(self, component: Component) -> Path:
        """Give the folder of a component's arrays."""
        return self.folder / component.folder

    def array(self, component: Component, image_id: str) -> Path:
        """Give the file of one array."""
        return self.folder / component.folder / (image_id + component.extension)

    def empty(self, suffix: str) -> Path:
        """Give the file of a member as it is for the empty caption."""
        return self.state / _EMPTY / suffix

    def make_folders(self) -> None:
        """Make the folders, and sync them: a killed run may have left files that were not.

        The caller holds the lock.
        """
        arrays = [self.arrays(component) for component in self.recipe.components]
        for folder in (self.jsonl.parent, *arrays):
            files.make_folder(folder)
        if self.recipe != SPECIFICATION and not (self.state / _RECIPE).exists():
            files.write(self.state / _RECIPE, msgspec.json.encode(self.recipe) + b"\n")
        for folder in dict.fromkeys((self.folder, self.jsonl.parent, self.state, *arrays)):
            files.sync_folder(folder)
        files.sync_parent(self.folder)
