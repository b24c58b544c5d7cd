"""From the paths that a user gives to images and tars; and one input as a plan stores it.

A row holds all that is needed to find an image again, in its file or in its tar, and to see that it
is still the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from shardwright.building import tars
from shardwright.deriving import captions, sources
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.recipes import Recipe
from shardwright.shards.format.tar import BLOCK
from shardwright.shards.format.tarread import split
from shardwright.storage import extents
from shardwright.storage.extents import CHANGED, GONE, HEAD, UNREADABLE, Extent, Part, begins
from shardwright.storage.local import LocalFile, Readable
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, resolved
from shardwright.summary import Count

_GIVE = "give folders of images, or tars of images"

Span = tuple[int, int]  # the offset and size of a member's data


class Found(NamedTuple):
    """What a given path holds, in the order of the paths."""

    path: str  # as it was given
    images: list[sources.Source]
    tars: Mapping[
        str, sources.State | None
    ]  # those at a URL with their states, as they were listed

    @property
    def root(self) -> str:
        """Name the folder that paths in ids are relative to."""
        is_tar = len(self.tars) == 1 and self.path in self.tars
        return os.path.dirname(self.path) or "." if is_tar else self.path


class Listing(msgspec.Struct, frozen=True):
    """What a given path held when it was listed; equal if nothing was added or removed."""

    path: str  # as it was given
    images: int
    tars: int
    digest: str


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One image as a plan stores it."""

    image_id: str
    path: str  # as in the record; of a member, the path of its tar and its name
    width: int  # upright
    height: int
    bytes: int  # of its file, or of its tar
    mtime_ns: int
    beside: bool = False  # whether a text lies beside its file
    tar_length: int = 0  # the characters of the path that are its tar's; 0 for a file
    image: Span | None = None
    text: Span | None = None
    json: Span | None = None
    # Of the first bytes; in a tar of this machine, of the names and sizes of its members too.
    xxh3: str = ""

    @property
    def tar(self) -> str:
        """Give the path of its tar; blank for a file."""
        return self.path[: self.tar_length]

    @property
    def file(self) -> str:
        """Give the path of the file that it is in."""
        return self.tar or self.path

    @property
    def state(self) -> sources.State:
        """Give the state of that file."""
        return self.bytes, self.mtime_ns


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input that is left out, and why; also a tar or a folder that cannot be used."""

    image_id: str  # blank if it is not known, or if it is not an image
    path: str = msgspec.field(name="image_path")
    reason: str
    detail: str
    by_recipe: bool = False  # whether the recipe's limits leave it out, which is no failure


def find(paths: Sequence[Location], progress: Progress) -> list[Found]:
    """Find the images and tars of each given path; raise if one has none, or holds another."""
    given: dict[Location, Location] = {}
    for path in paths:
        real = resolved(path)
        if real in given:
            raise UsageError("is given twice", path=path, fix="give it once")
        given[real] = path
    for real, path in given.items():
        above = real
        while above != above.parent:
            above = above.parent
            if above in given:
                what = f"is inside {given[above]}, which is given too"
                raise UsageError(what, path=path, fix="give only one of them")
    return [_find(path, progress) for path in paths]


def _find(path: Location, progress: Progress) -> Found:
    if path.suffix.lower() == sources.TAR and (tar := place_at(path).as_file()) is not None:
        return Found(tar.path, [], {tar.path: tar.state})
    images, tars = sources.find_all(path, progress)
    if not images and not tars:
        if path.is_file():
            raise UsageError("is neither a folder nor a .tar file", path=path, fix=_GIVE)
        what = "no images and no tars" if path.exists() else "no such file or folder"
        raise InputMissingError(what, path=path, fix=_GIVE)
    return Found(str(path), images, tars)


def listing(found: Found) -> Listing:
    """Sum up the names of the images, and the names, sizes and times of the tars.

    No image is looked at: ``changed`` does that for each one when it is needed.
    """
    hasher = xxhash.xxh3_128()
    start = len(found.root)
    for source in found.images:
        hasher.update(os.fsencode(source.path[start:]) + (b"\0\1" if source.has_sidecar else b"\0"))
    for tar in found.tars:
        hasher.update(os.fsencode(f"{os.path.relpath(tar, found.root)}\0{_state(found, tar)}\0"))
    return Listing(as_text(found.path), len(found.images), len(found.tars), hasher.hexdigest())


def differences(
    found: Sequence[Found], planned: Iterable[Row | str]
) -> dict[str, dict[str, Count]]:
    """Count the new, missing and changed files of given paths, against all of a plan.

    Of a planned input that cannot be used only its file is known. Of images only their names are
    compared, and whether a text lies beside them.
    """
    now: dict[str, tuple[str, object]] = {}  # the given path of each file, and its state
    for each in found:
        path = as_text(each.path)
        now |= {as_text(s.path): (path, s.has_sidecar) for s in each.images}
        now |= {as_text(tar): (path, _state(each, tar)) for tar in each.tars}
    counts = {as_text(each.path): dict[str, Count]() for each in found}
    kinds = {file: (path, "new") for file, (path, _) in now.items()}
    missing, changed = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for row in planned:
        file = row if isinstance(row, str) else row.file
        kinds.pop(file, None)
        if file not in now:
            above = (p for p in counts if file == p or file.startswith(p.rstrip("/") + "/"))
            if path := next(above, ""):
                missing[file] = path, "missing"
        elif isinstance(row, Row) and now[file][1] != (row.state if row.tar else row.beside):
            changed[file] = now[file][0], "changed"
    for file, (path, kind) in (kinds | missing | changed).items():
        counts[path].setdefault(kind, Count(0, file)).count += 1
    return counts


def source_of(row: Row) -> sources.Source:
    """Give the image of a row, to be read."""
    seen = extents.expected(row.file, row.mtime_ns, row.xxh3)
    if row.image is None:
        part = Part(row.path, 0, row.bytes, "", *seen) if seen else None
        return sources.Source(row.image_id, row.path, row.beside, part=part)
    tar, name = row.tar, row.path[row.tar_length + 1 :]
    key, _ = split(name) or (name, "")
    text = Part(tar, *row.text, f"{key}.{tars.TEXT}") if row.text else None
    image = Part(tar, *row.image, name, *seen)
    return sources.Source(row.image_id, row.path, text is not None, part=image, text=text)


def columns(json: Part | None, recipe: Recipe) -> captions.Row:
    """Read the columns of the JSON that lies with an image; raise CaptionError."""
    if json is None:
        return {}
    try:
        return tars.row(extents.read(json), recipe)
    except OSError as error:
        raise captions.CaptionError("caption_unreadable", f"{json}: {error.strerror}") from None


def changed(row: Row) -> tuple[str, str] | None:
    """Say why an image is no longer the one that was planned: the reason's name and a detail.

    A file with another time, as a copy has, is the same if its size and its first bytes are. A tar
    may be another one if what belongs to this image is in it as before. An image at a URL was
    compared when it was read.
    """
    if extents.expected(row.file, row.mtime_ns, row.xxh3):
        return None
    try:
        now = extents.state(row.file)
        if now == row.state:
            return None
        if row.image is None:
            what = "its file has changed since it was planned"
            is_same = now[0] == row.bytes and head_of(row.path) == row.xxh3
        else:
            what = "its tar was changed after planning, and this image or its text is different now"
            spans = [span for span in (row.image, row.text, row.json) if span is not None]
            with LocalFile(Path(row.tar)) as tar:
                is_there = all(sum(span) <= tar.size for span in spans)
                is_same = is_there and fingerprint(tar, spans) == row.xxh3
        return None if is_same else (CHANGED, what)
    except FileNotFoundError:
        return GONE, f"{'its tar' if row.tar else 'its file'} is gone"
    except OSError as error:
        return UNREADABLE, error.strerror or str(error)


def head_of(place: Extent) -> str:
    """Hash the first bytes of an image."""
    return begins(extents.begin(place, HEAD))


def fingerprint(tar: Readable, spans: Iterable[Span]) -> str:
    """Hash how members begin: their names and sizes, and some of their bytes."""
    hasher = xxhash.xxh3_64()
    for offset, size in spans:
        data = tar.pread(offset - BLOCK, BLOCK + min(size, HEAD))
        for part in (data[:100], data[124:136], data[345:500], data[BLOCK:]):  # with a prefix
            hasher.update(part)
    return hasher.hexdigest()


def _state(found: Found, tar: str) -> sources.State | None:
    """Give the size and time of a tar, if it can be found."""
    with suppress(OSError):
        return found.tars[tar] or extents.state(tar)
    return None


def as_text(name: str) -> str:
    """Give a name as JSON can hold it: bytes that are not Unicode are replaced."""
    return os.fsencode(name).decode(errors="replace")
