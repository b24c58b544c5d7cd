"""A store as one value: its paths, its recipe, and the identity by which shards know it again.

The identity is made once, of the records that the first complete run leaves, and never changes: not
with the records, and not in a copy. So it is the same however often that run was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
import xxhash

from shardwright import recipes, regular
from shardwright.errors import DamageError, InputMissingError, ProvenanceError, StorageError
from shardwright.interrupts import check
from shardwright.layout import BUCKET_PREFIX, EMPTY_FOLDER, JSONL_NAME, STATE_FOLDER
from shardwright.recipes import SPECIFICATION, Component, Recipe, RecipeFile
from shardwright.recipes.compare import differences
from shardwright.storage import files, steps, urls
from shardwright.storage.paths import exists
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined, names
from shardwright.store import provenance
from shardwright.store.journal import journal_path
from shardwright.store.records import NOT_JSON
from shardwright.validate import as_text, place, place_or_none

IDENTITY = "identity.json"
_CHUNK = 1 << 20
_RECIPE = "recipe.json"
_MANIFEST = "manifest.json"  # of a shard folder


@dataclass(frozen=True)
class Store:
    """A Stage 2 store: a folder of records and arrays."""

    folder: Path
    jsonl: Path
    recipe: Recipe = SPECIFICATION

    @classmethod
    def at(cls, folder: Path, jsonl: Path | None = None, given: RecipeFile | None = None) -> Self:
        """Find the store in a folder, with the recipe it was made with.

        Raise if another one is given. A store that no run of ours has written to has the given one.
        Raise too if an interrupted run has changed only a part of it.
        """
        there = recorded(folder)
        asked = given.recipe if given is not None and given.origin is not None else None
        # The fit may have been chosen by a flag of derive.
        if there and asked and (changes := differences(there, replace(asked, fit=there.fit))):
            what = f"was made with another recipe ({'; '.join(changes)})"
            fix = (
                "to bring it up to date run shardwright derive, or give the recipe it was made with"
            )
            raise ProvenanceError(what, path=folder, fix=fix)
        recipe = there or (given.recipe if given else SPECIFICATION)
        store = cls(folder, jsonl or folder / JSONL_NAME, recipe)
        if interrupted := steps.under_way(folder):
            fix = f"to finish it, run {store._derive}"
            raise ProvenanceError(f"the {interrupted} was interrupted", path=folder, fix=fix)
        for component in recipe.components:
            if not component.is_known:
                assert given is not None
                fix = "add it to the recipe, or run shardwright derive, which asks the model"
                raise given.error(component.name, "shape", "is not known yet", fix)
        return store

    def of(self, jsonl: str) -> Store:
        """Give the store with another JSONL, whose path is relative to the folder."""
        return replace(self, jsonl=joined(self.folder, jsonl))

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

    @property
    def empties(self) -> Path:
        """Give the folder of what a sample with the empty caption would have."""
        return self.state / EMPTY_FOLDER

    def empty(self, suffix: str) -> Path:
        """Give the file of a member as it is for the empty caption."""
        return self.empties / suffix

    @property
    def next(self) -> Store:
        """Give the store of the next generation, with what is recomputed and not in use yet."""
        folder = self.state / "next"
        return Store(folder, folder / JSONL_NAME, self.recipe)

    @property
    def _derive(self) -> str:
        from shardwright.store import commands  # which imports this

        return commands.derive(self)

    def require_merged(self) -> None:
        """Raise if there is a journal but no JSONL, as after a first run that was killed."""
        if self.journal.is_file() and not self.jsonl.exists():
            what = (
                f"no such file yet; an interrupted derive left its records in {self.journal.name}"
            )
            fix = f"to merge them, run {self._derive}"
            raise InputMissingError(what, path=self.jsonl, fix=fix)

    def array_ids(self, component: Component) -> Iterator[str]:
        """List the ids that have an array of a component, in any order, one at a time."""
        end = component.extension
        found = _listed(self.arrays(component))
        return (name.removesuffix(end) for name in found if name.endswith(end))

    def leftovers(self) -> list[Path]:
        """Find the temporary files in its folders."""
        return [
            folder / name
            for folder in (self.folder, *map(self.arrays, self.recipe.components))
            for name in sorted(_listed(folder))
            if name.endswith(files.TMP_SUFFIX)
        ]

    def make_folders(self) -> None:
        """Make the folders of a store; the caller holds the lock."""
        for folder in (self.jsonl.parent, *map(self.arrays, self.recipe.components)):
            files.make_folder(folder)

    def sync(self) -> None:
        """Make every name durable: a killed run may have left files that were not synced."""
        arrays = map(self.arrays, self.recipe.components)
        for folder in dict.fromkeys((self.folder, self.jsonl.parent, self.state, *arrays)):
            if folder.is_dir():
                files.sync_folder(folder)
        files.sync_parent(self.folder)

    def record(self, into: steps.Steps | None = None, *, always: bool = False) -> None:
        """Record the recipe: now, or as one of several steps.

        The specification needs no file, unless ``always``.
        """
        path = self.state / _RECIPE
        if self.recipe == SPECIFICATION and not always:
            (into.remove if into else files.withdraw)(path)
        elif read_recipe(self.folder) != self.recipe:
            (into.write if into else files.write)(path, msgspec.json.encode(self.recipe) + b"\n")


def _listed(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        with files.explained(folder), os.scandir(folder) as entries:
            for entry in entries:
                check()
                yield entry.name


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


def read_recipe(folder: Path) -> Recipe | None:
    """Read the recipe that is recorded in a folder, if there is one."""
    path = folder / STATE_FOLDER / _RECIPE
    if not path.exists():
        return None
    with files.explained(path):
        return recipes.decode(regular.read(path), path)


def recorded(folder: Path) -> Recipe | None:
    """Give the recipe of a store; None if no run of ours has written to it."""
    if (earlier := folder / STATE_FOLDER / "rearrange.json").exists():
        raise provenance.left_before("renaming or removing images", earlier)
    entries = provenance.readable(folder)
    made = (folder / component.folder for component in SPECIFICATION.components)
    begun = entries or ((folder / STATE_FOLDER).is_dir() and any(map(Path.is_dir, made)))
    return read_recipe(folder) or (SPECIFICATION if begun else None)


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["shardwright-identity"] = "shardwright-identity"
    version: Literal[1] = 1
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


def read_identity(store: Store) -> str | None:
    """Give the identity of a store; None if no run has made one yet."""
    path = store.state / IDENTITY
    if not path.exists():
        return None
    try:
        with files.explained(path):
            data = regular.read(path)
        return msgspec.json.decode(data, type=_Identity, strict=True).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fix = "restore it from a copy of the store, or delete it and pack with --overwrite"
        raise DamageError("is damaged", path=path, fix=fix) from None


def make_identity(store: Store) -> None:
    """Give a store its identity, if it has records and none yet; the caller holds the lock."""
    path = store.state / IDENTITY
    if path.exists() or not store.jsonl.is_file() or not store.jsonl.stat().st_size:
        return
    hasher = xxhash.xxh3_128()
    with files.explained(store.jsonl), regular.unbuffered(store.jsonl) as file:
        while piece := file.read(_CHUNK):
            check()
            hasher.update(piece)
    provenance.write_document(path, msgspec.json.encode(_Identity(id=hasher.hexdigest())))


def find_recipe(given: object) -> RecipeFile:
    """Read the recipe that ``--recipe`` names, else the one in force."""
    return recipes.find(None if given is None else as_text("--recipe", given, "a file or a name"))


def find_places(
    recipe: object, derived_dir: object, jsonl: object, shards: object
) -> tuple[Store, Location, RecipeFile]:
    """Find the store, the shard folder and the recipe file of a command.

    Raise if the store has another recipe.
    """
    file = find_recipe(recipe)
    folder = place("--derived-dir", file.paths["store"] if derived_dir is None else derived_dir)
    store = Store.at(folder, place_or_none("--jsonl", jsonl), file)
    output = urls.place("--output-dir", file.paths["shards"] if shards is None else shards)
    return store, output, file
