"""Finds the images of samples below a path, by the paths that their records have.

The images may have moved since: what counts is how a path ends, and then the name alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from shardwright.building import inputs, tars
from shardwright.building.tars import TarSample
from shardwright.deriving.sources import TAR
from shardwright.errors import DamageError, InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.shards.format import records
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.storage.extents import Extent
from shardwright.storage.urls import Location
from shardwright.store.records import Record
from shardwright.store.store import holds_shards

MADE_FROM = "give --against the images that the shards were made from"
_GIVE = "give --against the store that the shards were packed from, or the images they show"
_DEEPEST = 32  # folders of a path that are looked for elsewhere


def path_of(record: Record) -> str:
    """Give the path of the image in a record; blank if there is none."""
    path = record.get("image_path")
    return path if isinstance(path, str) else ""


def recorded_hash(folder: Location, entry: ShardEntry, number: int) -> str | None:
    """Read the hash of the image that a sample was made from; None if it is not on record."""
    with suppress(DamageError, InputMissingError):  # which the check of the shard reports
        lines = records.load(folder, entry.path, entry.records_xxh3)
        return next((facts.image_xxh3 for _, facts in islice(lines, number, None)), None)
    return None


def require_images(root: Path) -> None:
    """Raise if a path cannot hold images."""
    if root.is_dir() and (is_packed(root) or holds_shards(root) or parts_of(root)):
        raise UsageError("is a shard folder", path=root, fix=_GIVE)
    if not root.exists():
        raise InputMissingError("no such file or folder", path=root, fix=_GIVE)
    if not root.is_dir() and root.suffix.lower() != TAR:
        raise UsageError("is neither a folder nor a .tar file", path=root, fix=_GIVE)


class Wanted(NamedTuple):
    """An image to find."""

    path: str  # as it is recorded
    least: int  # parts of the path that must be the same: where names are not unique, more than one

    def is_at(self, found: str) -> bool:
        """Whether a file or a member may be this image."""
        ends = (path.split("/")[-self.least :] for path in (self.path, os.path.abspath(found)))
        return next(ends) == next(ends)


def find(root: Path, wanted: Collection[Wanted], progress: Progress) -> dict[str, Extent]:
    """Find images by their recorded paths; those that are not there are left out.

    All files are listed only if an image is not where its path says.
    """
    found: dict[str, Extent] = {}
    members: dict[str, dict[str, str]] = {}  # by tar, and by member: the recorded path

    def choose(image: Wanted, files: Iterable[str], holders: Iterable[str]) -> bool:
        """Choose the first of the files that may be the image, or of the tars that may hold it."""
        member = _split(image.path)[1]
        if file := next(filter(image.is_at, files), None):
            found[image.path] = file
        elif tar := next((tar for tar in holders if image.is_at(f"{tar}/{member}")), None):
            members.setdefault(tar, {})[member] = image.path
        else:
            return False
        return True

    elsewhere = [
        image
        for image in dict.fromkeys(wanted)
        if not choose(image, _below(root, image.path), _below(root, _split(image.path)[0]))
    ]
    names = _by_name(root, elsewhere, progress) if elsewhere else {}
    for image in elsewhere:
        paths = (image.path, _split(image.path)[0])
        files, holders = (names.get(os.path.basename(path), []) for path in paths)
        choose(image, files if len(files) == 1 else [], holders if len(holders) == 1 else [])
    for tar, paths_of in members.items():
        for sample in tars.samples(tar):
            if isinstance(sample, TarSample) and sample.image.name in paths_of:
                found[paths_of[sample.image.name]] = sample.image
    return found


def ends_below(root: Path, path: str) -> Iterator[str]:
    """Name where an image may be below a folder; the longest end of its path comes first."""
    names = [name for name in path.split("/") if name not in ("", "..", ".")][-_DEEPEST:]
    for start in range(len(names)):
        yield str(root.joinpath(*names[start:]))


def _below(root: Path, path: str) -> Iterator[str]:
    """Find files by a path below the root, then by how it ends; the root may be the only file."""
    if root.is_dir():
        inside = path and Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))
        places = ends_below(root, path)
        return filter(os.path.isfile, chain([path], places) if inside else places)
    return iter([str(root)] if root.name == os.path.basename(path) else [])


def _split(path: str) -> tuple[str, str]:
    """Cut the path of a member into that of its tar and its name; blank if it is in none."""
    end = path.lower().rfind(f"{TAR}/")
    return ("", "") if end < 0 else (path[: end + len(TAR)], path[end + len(TAR) + 1 :])


def _by_name(root: Path, images: Iterable[Wanted], progress: Progress) -> dict[str, list[str]]:
    """List the images and tars below the root that have the names of these."""
    paths = (path for image in images for path in (image.path, _split(image.path)[0]))
    wanted = {os.path.basename(path) for path in paths}
    names: dict[str, list[str]] = {}
    for file in _listed(root, progress):
        if (name := os.path.basename(file)) in wanted:
            names.setdefault(name, []).append(file)
    return names


def _listed(root: Path, progress: Progress) -> list[str]:
    """List the images and tars below the root; raise if there are none, or only shards."""
    found = list[str]()
    with suppress(InputMissingError):
        (listed,) = inputs.find([root], progress)
        folders = {tar: os.path.dirname(os.path.dirname(tar)) for tar in listed.tars}
        ours = {folder for folder in {*folders.values()} if is_packed(Path(folder))}
        found += (source.path for source in listed.images if not source.fault)
        found += (tar for tar, folder in folders.items() if folder not in ours)
    if not found:
        what = "is no store, and has no images and no tars of images"
        raise InputMissingError(what, path=root, fix=_GIVE)
    return found
