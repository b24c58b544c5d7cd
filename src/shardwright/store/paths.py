"""The folders of images that a store was made from, and the captions file of each.

A path is recorded as it is from the store, so that a project can be moved, and as it is from the
root, so that the store can be moved alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.storage.urls import joined
from shardwright.store import provenance
from shardwright.store.store import Store
from shardwright.text import near

NAME = "paths.json"


class _Place(msgspec.Struct, frozen=True):
    relative: str
    absolute: str

    def __post_init__(self) -> None:
        if "\0" in self.relative + self.absolute:
            raise ValueError("has a NUL, so it is not a path")

    @classmethod
    def of(cls, path: Path, store: Store) -> _Place:
        return cls(_from(_real(path), store), os.path.abspath(path))

    def candidates(self, store: Store) -> tuple[Path, Path]:
        return joined(store.folder, self.relative), Path(self.absolute)

    def found(self, store: Store) -> Path | None:
        return next(filter(Path.exists, self.candidates(store)), None)

    def resolved(self, store: Store) -> Path:
        return _real(self.found(store) or self.candidates(store)[0])

    def shown(self, store: Store) -> str:
        return near(str(self.resolved(store)))


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    folder: _Place
    captions: _Place | None = None
    jsonl: str | None = None  # that holds the records, as it is from the store; None for its own

    def is_at(self, real: Path, store: Store) -> bool:
        return real in map(_real, self.folder.candidates(store))

    def is_below(self, real: Path, store: Store) -> bool:
        return any(real in _real(path).parents for path in self.folder.candidates(store))


class _Document(msgspec.Struct, frozen=True):
    images: list[_Entry] = []


def folders(store: Store) -> list[Path]:
    """List the folders of images that are there, without those below another one."""
    found: dict[Path, Path] = {}
    for entry in _read(store):
        if (path := entry.folder.found(store)) is not None and path.is_dir():
            given = Path(entry.folder.absolute)  # which may have links, as in the records
            found[_real(path)] = given if _real(given) == _real(path) else path
    return [path for real, path in found.items() if found.keys().isdisjoint(real.parents)]


def earlier(images: Path, store: Store) -> Iterator[str]:
    """Name where a folder of images was before it moved, or was copied, together with the store.

    Then its path from the store is the same, and its path from the root is another.
    """
    real = _real(images)
    for entry in _read(store):
        was, now = Path(entry.folder.absolute), _real(entry.folder.candidates(store)[0])
        if _real(was) == now:
            continue
        if real == now or now in real.parents:
            yield str(was / real.relative_to(now))
        elif (
            real in now.parents
            and was.parts[-(depth := len(now.relative_to(real).parts)) :] == (now.parts[-depth:])
        ):
            yield str(was.parents[depth - 1])


def is_named(folder: Path, store: Store) -> bool:
    """Whether images were given by this path, or by that of a folder above or below it."""
    given = [Path(entry.folder.absolute) for entry in _read(store)]
    return any(each.is_relative_to(folder) or folder.is_relative_to(each) for each in given)


def captions_of(images: Path, store: Store, *, own: bool = True) -> dict[str, Path]:
    """Find the captions files of a folder of images, each by the folder that it is for.

    Its ``own`` is that of the nearest folder above, if it has none. Folders below it may have
    others. Raise if one is gone.
    """
    real, found = _real(images), dict[str, Path]()
    if own and (nearest := _nearest(real, store)):
        found[str(images)] = _file(*nearest, images, store)
    for entry, captions in _captioned(store):
        places = map(_real, entry.folder.candidates(store))
        if below := next((path for path in places if real in path.parents), None):
            folder = os.path.join(images, below.relative_to(real))  # as its images are named
            found[folder] = _file(entry, captions, images, store)
    return found


def dropped(images: Path, captions: Path | None, store: Store) -> list[tuple[str, str]]:
    """List what ``remember`` makes the store forget: folders of images, and the files of each.

    A folder is given with the file of all images below it. Raise if it is None and the folder has
    no file of its own, but one above or below it has.
    """
    real, known = _real(images), _captioned(store)
    own = [each for each in known if each[0].is_at(real, store)]
    below = [each for each in known if each[0].is_below(real, store)]
    if captions is None and not own and (other := _nearest(real, store) or next(iter(below), None)):
        folder, used = other[0].folder.shown(store), other[1].shown(store)
        what = f"--captions none: it is {folder} that uses {used}"
        fix = f"to forget the file, give {folder}; to use another one here, --captions FILE"
        raise UsageError(what, path=images, fix=fix)
    return [
        (entry.folder.shown(store), file.shown(store))
        for entry, file in (own if captions is None else [*own, *below])
        if captions is None or _real(captions) != file.resolved(store)
    ]


def remember(images: Path, captions: Path | None, store: Store) -> None:
    """Record a folder of images with the captions file of all images below it, or without one."""
    place = None if captions is None else _Place.of(captions, store)
    _write(images, place, store, replace=captions is not None)


def note(images: Path, store: Store) -> None:
    """Record a folder of images, which keeps its captions file; not if it is below another one."""
    real, entries = _real(images), _read(store)
    if not any(each.is_at(path, store) for each in entries for path in real.parents):
        own = (each.captions for each in entries if each.is_at(real, store))
        _write(images, next(own, None), store, replace=False)


def _write(images: Path, captions: _Place | None, store: Store, *, replace: bool) -> None:
    """Record a folder; it replaces those below that have no captions file of their own, or all."""
    real, ours = _real(images), _read(store)
    new = _Entry(_Place.of(images, store), captions, _jsonl(store))
    entries = []
    for entry in _all(store):
        if entry in ours and entry.is_at(real, store):
            entries += [new] * (new not in entries)
        elif entry not in ours or not (
            entry.is_below(real, store) and (replace or entry.captions is None)
        ):
            entries.append(entry)
    entries += [new] * (new not in entries)
    try:
        data = msgspec.json.encode(_Document(entries))
    except UnicodeEncodeError:  # JSON cannot hold a path that is not Unicode
        return
    if entries != _all(store):
        provenance.write_document(store.state / NAME, data)


def _file(entry: _Entry, captions: _Place, images: Path, store: Store) -> Path:
    found = captions.found(store)
    if found is None:
        other = "" if entry.is_at(_real(images), store) else entry.folder.shown(store)
        of_it, derive = (f" of {other}", f"derive {other} with") if other else ("", "give")
        fix = f"{derive} --captions FILE, or --captions none to forget it"
        path = captions.candidates(store)[0]
        raise InputMissingError(f"the captions file{of_it} is gone", path=path, fix=fix)
    return found


def _nearest(real: Path, store: Store) -> tuple[_Entry, _Place] | None:
    """Find the captions file that a folder has, or the nearest folder above."""
    known = _captioned(store)
    paths = (real, *real.parents)
    return next((each for path in paths for each in known if each[0].is_at(path, store)), None)


def _captioned(store: Store) -> list[tuple[_Entry, _Place]]:
    """List the folders that have a captions file, each with it."""
    return [(entry, entry.captions) for entry in _read(store) if entry.captions is not None]


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve() raises where links go in a circle


def _from(real: Path, store: Store) -> str:
    return os.path.relpath(real, _real(store.folder))


def _jsonl(store: Store) -> str | None:
    name = _from(_real(store.jsonl), store)
    return None if name == JSONL_NAME else name


def _read(store: Store) -> list[_Entry]:
    return [entry for entry in _all(store) if entry.jsonl == _jsonl(store)]


def _all(store: Store) -> list[_Entry]:
    fix = "delete it, and give derive --captions again"
    found = provenance.read_document(store.state / NAME, _Document, fix)
    return found.images if found else []
