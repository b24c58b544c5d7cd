"""Which images are in the shards: what each one was, so that an append knows it again.

Every run of a build leaves a file of its own in the state folder. Shards that ``pack`` made have
none; of them the records know the paths and the hashes, and of those of an earlier version only
the paths.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import msgspec

from shardwright.building.inputs import Row, source_of
from shardwright.deriving.sources import State
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.extents import UNREADABLE, Extent, Part
from shardwright.storage.urls import Location, names_below
from shardwright.store.facts import image_file
from shardwright.store.records import NOT_JSON
from shardwright.summary import Count

_FOLDER = "built"
_SUFFIX = ".jsonl"


class Built(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An image that a sample was made of."""

    image_id: str
    path: str  # as in the record; blank where it has none, in shards of an earlier version
    file_bytes: int = 0  # of its file, or of its tar
    mtime_ns: int = 0
    own_bytes: int = 0  # of the image itself; 0 if it is not known, as what is before
    xxh3: str = ""  # of all of these; blank if it is not known

    @property
    def line(self) -> bytes:
        """Write it as a line, which takes less memory."""
        return msgspec.json.encode(self)

    def is_same(self, path: str, place: Extent, state: State) -> bool:
        """Whether an image is this one, by what is in it; ``state`` is that of its file or tar.

        It is read only if it may be as large, and was perhaps moved or written to; raises OSError.
        """
        if not self.path:
            return True
        named_alike = self.is_named(path)
        if not self.xxh3:
            with suppress(OSError, ValueError):  # a record may hold what is no path
                return named_alike or os.path.samefile(self.path, path)
            return False
        if named_alike and state == (self.file_bytes, self.mtime_ns):
            return True
        size = place.size if isinstance(place, Part) else state[0]
        return self.own_bytes in (0, size) and image_file(place).xxh3 == self.xxh3

    def is_named(self, path: str) -> bool:
        """Whether it has this path."""
        return os.path.normpath(self.path) == os.path.normpath(path)


decode = msgspec.json.Decoder(Built).decode


def other(line: bytes, row: Row) -> tuple[str, str] | None:
    """Say why an image is not the one that the shards have of its id: the reason and a detail."""
    known = decode(line)
    try:
        if known.is_same(row.path, source_of(row).place, (row.bytes, row.mtime_ns)):
            return None
    except OSError as error:
        return UNREADABLE, error.strerror or str(error)
    if not known.xxh3:
        what = f"the shards have this image_id for {known.path}, and what it was is not on record"
    elif known.is_named(row.path):
        what = "the shards have an earlier image of this path"
        what += "; to replace it, build again with --overwrite"
    else:
        what = f"the shards have this image_id for {known.path}, which is another image"
    return "duplicate_id", what


def save(folder: Location, plan: str, lines: Iterable[bytes]) -> None:
    """Write down the images of a run, before its manifest is written."""
    if data := b"".join(line + b"\n" for line in lines):
        files.make_folder(folder / STATE_FOLDER / _FOLDER)
        files.write(_path(folder, plan), data)


def load(folder: Location, plans: Iterable[str]) -> Iterator[Built]:
    """Read the images of some runs of a folder, as far as they are on record."""
    for plan in plans:
        path = _path(folder, plan)
        if plan.isalnum() and path.is_file():
            with files.explained(path):
                data = files.read(path)
            for line in data.splitlines():
                with suppress(*NOT_JSON):  # then it is not on record
                    if "\0" not in (image := decode(line)).path:
                        yield image


def repeated(new: Iterable[Built], before: Iterable[Built]) -> Count | None:
    """Count the new images whose content was in the shards before, under other ids."""
    by_content: dict[str, list[Built]] = {}
    for image in new:
        by_content.setdefault(image.xxh3, []).append(image)
    found = None
    for old in before:
        those = by_content.pop(old.xxh3, []) if old.xxh3 else []
        if those:
            found = found or Count(0, f"{those[0].path}, which is {old.image_id}")
            found.count += len(those)
    return found


def forget(folder: Location, plans: Collection[str]) -> None:
    """Remove the images of all runs but some, whose shards were replaced."""
    there = folder / STATE_FOLDER / _FOLDER
    for name in names_below(there):
        if name.removesuffix(_SUFFIX) not in plans:
            files.withdraw(there / name)


def _path(folder: Location, plan: str) -> Location:
    return folder / STATE_FOLDER / _FOLDER / f"{plan}{_SUFFIX}"
