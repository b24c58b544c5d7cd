"""The captions files that a store was made with, each for a folder of images.

A path is recorded as it is from the store, so that a project can be moved, and as it is from the
root, so that the store can be moved alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shardwright import regular
from shardwright.errors import InputMissingError, ProvenanceError
from shardwright.storage import files
from shardwright.store.store import Store, joined

NAME = "paths.json"


class _Place(msgspec.Struct, frozen=True):
    relative: str
    absolute: str

    def __post_init__(self) -> None:
        if "\0" in self.relative + self.absolute:
            raise ValueError("has a NUL, so it is not a path")

    @classmethod
    def of(cls, path: Path, store: Store) -> _Place:
        real = path.resolve()
        return cls(os.path.relpath(real, store.folder.resolve()), str(real))

    def candidates(self, store: Store) -> tuple[Path, Path]:
        return joined(store.folder, self.relative), Path(self.absolute)


class _Entry(msgspec.Struct, frozen=True):
    images: _Place
    file: _Place


class _Document(msgspec.Struct, frozen=True):
    captions: list[_Entry] = []


def folders(store: Store) -> list[Path]:
    """List the folders of images that have a captions file of their own, and are there."""
    places = (entry.images.candidates(store) for entry in _read(store))
    found = (next(filter(Path.is_dir, each), None) for each in places)
    return [path for path in found if path is not None]


def is_named(images: Path, store: Store) -> bool:
    """Whether a folder of images, or one above it, has a captions file."""
    return _find(images, store, _read(store)) is not None


def captions_of(images: Path, store: Store) -> Path | None:
    """Find the captions file of a folder of images, or of the nearest folder above; None for none.

    Raise if it is gone.
    """
    entry = _find(images, store, _read(store))
    if entry is None:
        return None
    places = entry.file.candidates(store)
    found = next(filter(Path.exists, places), None)
    if found is None:
        fix = "give --captions FILE, or --captions none to forget it"
        raise InputMissingError("the captions file is gone", path=places[0], fix=fix)
    return found


def remember(captions: Path | None, images: Path, store: Store) -> None:
    """Record the captions file of a folder of images; None forgets the one that is in force."""
    entries = _read(store)
    old = _find(images, store, entries)
    if captions is None:
        new = [entry for entry in entries if entry is not old]
    else:
        entry = _Entry(_Place.of(images, store), _Place.of(captions, store))
        same = images.resolve()
        others = (each for each in entries if same not in _folders(each, store))
        new = [*others, entry]
    if new == entries:
        return
    try:
        data = msgspec.json.encode(_Document(new))
    except UnicodeEncodeError:  # JSON cannot hold a path that is not Unicode
        return
    files.make_folder(store.state)
    files.write(store.state / NAME, msgspec.json.format(data, indent=2) + b"\n")


def _find(images: Path, store: Store, entries: list[_Entry]) -> _Entry | None:
    by_folder = {path: entry for entry in entries for path in _folders(entry, store)}
    real = images.resolve()
    return next((by_folder[path] for path in (real, *real.parents) if path in by_folder), None)


def _folders(entry: _Entry, store: Store) -> list[Path]:
    return [path.resolve() for path in entry.images.candidates(store)]


def _read(store: Store) -> list[_Entry]:
    path = store.state / NAME
    try:
        return msgspec.json.decode(regular.read(path), type=_Document).captions
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ProvenanceError(str(error.strerror), path=path) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fix = "delete it, and give derive --captions again"
        raise ProvenanceError("cannot be read", path=path, fix=fix) from None
