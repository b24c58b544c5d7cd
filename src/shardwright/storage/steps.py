"""Steps: what a run changes in a folder, written down before any of it is done.

``FOLDER/.shardwright/steps.jsonl`` lists renames and removals, in their order. A run that is killed
leaves it, and until a run with the writing lock has done all of it again, nobody reads the folder.
Each step can be repeated: a file that is renamed had a name that counts for nothing, and no name is
removed that another step gives to a file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from shardwright import regular
from shardwright.errors import DamageError, StorageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.files import NewFile
from shardwright.storage.local import LocalPlace
from shardwright.storage.paths import is_below, require_names
from shardwright.storage.urls import is_within

NAME = "steps.jsonl"
_LONGEST = 1 << 20  # bytes of a line
_FIX = "restore it, or use another folder"

_Line = TypeVar("_Line", bound=msgspec.Struct)


class _Head(msgspec.Struct, frozen=True):
    what: str  # is done


class _Step(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rename, or a removal if there is no source; a name with ``/`` at its end is a folder's."""

    source: str | None
    target: str


class Steps:
    """Collects steps in a block, and does them when it ends without an error."""

    def __init__(self, folder: Path, what: str) -> None:
        self._folder = folder
        self._sources: dict[Path, None] = {}
        self._replacements: list[Path] = []  # that are complete, and not in use
        self._length = 0
        files.make_folder(note_of(folder).parent)
        self._file = NewFile(note_of(folder))
        self._put(_Head(what))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        written = False
        try:
            with self._file:
                if kind is None:
                    for folder in self._sources:  # a file that is not there counts as renamed
                        files.sync_folder(folder)
                    self._file.seal(self._length)
            if kind is None:
                files.publish(self._file.tmp, self._file.path)
                written = True
        finally:
            for path in () if written else self._replacements:
                with suppress(StorageError):  # the error that brought us here is the one to report
                    files.remove(path)
        if written:
            files.sync_folder(self._file.path.parent)
            _do(self._folder)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, which may be in use."""
        self._sources[source.parent] = None
        self._put(_Step(self._name(source), self._name(target)))

    def replace(self, path: Path, tmp: Path) -> None:
        """Replace a file by one that is complete; without the steps, that is discarded."""
        self._replacements.append(tmp)
        self.rename(tmp, path)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file, or replace it."""
        files.prepare(path, data)
        self.replace(path, path.with_name(path.name + files.TMP_SUFFIX))

    def rename_all(self, source: Path, target: Path) -> None:
        """Move each file of a folder to another one, with the name it has."""
        if source.is_dir():
            self._sources[source] = None
            self._put(_Step(self._name(source) + "/", self._name(target) + "/"))

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._put(_Step(None, self._name(path)))

    def remove_all(self, folder: Path) -> None:
        """Remove a folder, with all that is in it."""
        self._put(_Step(None, self._name(folder) + "/"))

    def _put(self, line: _Head | _Step) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._file.put(data)
        self._length += len(data)

    def _name(self, path: Path) -> str:
        """Write a path relative to the folder, which may be a link, or be moved meanwhile."""
        if path.is_relative_to(self._folder):
            return str(path.relative_to(self._folder))
        return os.path.relpath(os.path.realpath(path), os.path.realpath(self._folder))


def note_of(folder: Path) -> Path:
    """Name the file that lists the steps."""
    return folder / STATE_FOLDER / NAME


def under_way(folder: Path) -> str | None:
    """Say what a run was doing when it was interrupted; None if nothing."""
    path = note_of(folder)
    if not path.exists():
        return None
    with files.explained(path), regular.opened(path) as file:
        return _decoded(path, file.readline(_LONGEST), _Head).what


def finish(folder: Path, trusted: Collection[Path] = ()) -> str | None:
    """Do all steps that an interrupted run has left; say what it was doing.

    The caller holds the lock. ``trusted`` are files, and folders of files, to which links lead out
    of the folder; any other name that does is damage.
    """
    if (what := under_way(folder)) is None:
        return None
    real = Path(os.path.realpath(folder))
    outside = {Path(os.path.realpath(path)) for path in trusted}

    def is_own(name: str) -> bool:
        if "\0" in name or name.startswith("/") or not name.strip("/"):
            return False
        parent = Path(os.path.realpath(real / os.path.dirname(name)))  # of a folder, itself
        below = is_below(name.removesuffix("/")) and (parent in outside or is_within(parent, real))
        return below or parent / os.path.basename(name) in outside

    for step in _steps(folder):
        names = [name for name in (step.source, step.target) if name is not None]
        require_names(names, is_own, "a name in this folder", note_of(folder), _FIX)
    _do(folder)
    return what


def _do(folder: Path) -> None:
    """Do all steps, from the first one."""
    changed: dict[Path, None] = {}
    for step in _steps(folder):
        check()
        target = _path(folder, step.target)
        if step.source is not None:
            source, pairs = _path(folder, step.source), [(_path(folder, step.source), target)]
            if step.source.endswith("/"):
                listed = sorted(os.listdir(source)) if source.is_dir() else []
                pairs = [(source / name, target / name) for name in listed]
                if pairs:
                    files.make_folder(target)
            for old, new in pairs:
                check()
                if old.is_file():
                    files.move(old, new)
                    changed[new.parent] = None
        elif step.target.endswith("/"):
            _sync(changed)  # with the names of what was in it
            LocalPlace(target).remove_all()
        else:
            files.remove(target)
            changed[target.parent] = None
    _sync(changed)
    files.withdraw(note_of(folder))


def _sync(folders: dict[Path, None]) -> None:
    while folders:
        folder, _ = folders.popitem()
        if folder.is_dir():
            files.sync_folder(folder)


def _path(folder: Path, name: str) -> Path:
    if name.startswith("../"):  # from where the folder really is
        return Path(os.path.normpath(os.path.join(os.path.realpath(folder), name)))
    return folder / name


def _steps(folder: Path) -> Iterator[_Step]:
    path = note_of(folder)
    with files.explained(path), regular.opened(path) as file:
        _decoded(path, file.readline(_LONGEST), _Head)
        while line := file.readline(_LONGEST):
            yield _decoded(path, line, _Step)


def _decoded(path: Path, line: bytes, kind: type[_Line]) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise DamageError("is not a list of steps", path=path, fix=_FIX) from None
