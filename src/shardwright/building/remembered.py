"""The captions files that shards were built with, each for a folder of images.

A run notes them in the manifest, so that a later build reads them without the flag. A path is noted
as it is from the shards, so that a project can be moved, and as it is from the root, so that the
shards can be moved alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Self

import msgspec

from shardwright.errors import InputMissingError, UsageError
from shardwright.shards.format.manifest import Run, Unfinished
from shardwright.storage.paths import shown_near
from shardwright.storage.urls import (
    Location,
    exists,
    is_within,
    location,
    placed,
    relative_name,
    resolved,
)

NOTED = "captions"  # their field in what a run notes of a build
_LISTED = 3


class _Place(msgspec.Struct, frozen=True):
    relative: str  # to the shards; nothing is relative to a URL
    absolute: str

    def __post_init__(self) -> None:
        if "\0" in self.relative + self.absolute:
            raise ValueError("has a NUL, so it is not a path")

    @classmethod
    def of(cls, path: Location, output: Location) -> Self:
        absolute = os.fsencode(str(resolved(path))).decode(errors="backslashreplace")
        return cls(relative_name(path, output), absolute)

    def candidates(self, output: Location) -> Iterator[Location]:
        yield placed(output, self.relative)
        yield location(self.absolute)

    def found(self, output: Location) -> Location:
        """Give where it is; if it is gone, where it was."""
        places = list(self.candidates(output))
        return next(filter(exists, places), places[0])


class Remembered(msgspec.Struct, frozen=True):
    """A captions file, and the folder or the tar that it was given for."""

    images: _Place
    file: _Place

    @classmethod
    def of(cls, file: Location, images: Location, output: Location) -> Self:
        """Note a file."""
        return cls(_Place.of(images, output), _Place.of(file, output))

    def is_for(self, images: Location, output: Location) -> bool:
        """Whether it was given for these images."""
        return resolved(images) in map(resolved, self.images.candidates(output))


def noted(run: Run | Unfinished | None) -> list[Remembered]:
    """Read what a run has noted; nothing if it is no build, or of an earlier version."""
    if run is not None and run.build:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(run.build.get(NOTED, []), list[Remembered])
    return []


def in_force(
    known: Sequence[Remembered], images: Iterable[Location], output: Location
) -> list[Remembered]:
    """Find what was noted for the images or the nearest folder above, else for folders below."""
    found: list[Remembered] = []
    for given in images:
        above, below = list[tuple[int, Remembered]](), list[Remembered]()
        for each in known:
            for folder in each.images.candidates(output):
                if is_within(given, folder):
                    above.append((len(str(resolved(folder))), each))
                elif is_within(folder, given):
                    below.append(each)
        found += [max(above, key=itemgetter(0))[1]] if above else below
    return list(dict.fromkeys(found))


def file_of(those: Sequence[Remembered], output: Location) -> Location:
    """Give the file that was noted for some images; raise if it is gone, or if there are two."""
    files = {resolved(each.file.found(output)): each.file.found(output) for each in those}
    if len(files) > 1:
        what = f"was built with --captions {spelt(those, output)}"
        fix = "give --captions FILE or --captions none, or build each folder alone"
        raise UsageError(what, path=output, fix=fix)
    (file,) = files.values()
    if not exists(file):
        fix = "give --captions FILE, or --captions none to forget it"
        raise InputMissingError("the captions file is gone", path=file, fix=fix)
    return file


def spelt(those: Sequence[Remembered], output: Location) -> str:
    """Say which files were read for which images, as far as they are few."""
    listed = [
        " for ".join(shown_near(str(one.found(output))) for one in (each.file, each.images))
        for each in those[:_LISTED]
    ]
    more = len(those) - len(listed)
    return ", and ".join([*listed, *([f"{more:,} more"] if more else [])])
