"""Folders of images that have moved since their images were derived.

The facts of an image have its absolute path, which a moved or copied project no longer fits. A
folder is recognised by what is in it: nearly all images on record below the old one lie at the same
place below the folder that is given, with the same content. If many are missing, the images may
have been divided among several folders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shardwright.interrupts import check
from shardwright.storage.urls import is_within
from shardwright.store.facts import ImageFile, absolute, is_gone
from shardwright.store.store import Store

_COMPARED = 256  # images of a folder, at most


class Moves:
    """The folders that are now the one given."""

    def __init__(self, roots: Iterable[str], folder: str) -> None:
        self._roots, self._folder = frozenset(roots), folder

    def __bool__(self) -> bool:
        return bool(self._roots)

    def within(self, path: str) -> str | None:
        """Give where an image of a moved folder would be now; None if it was in none."""
        root = next((above for above in _above(path) if above in self._roots), None)
        return None if root is None else self._folder + path[len(root) :]

    def beside(self, image: ImageFile) -> str | None:
        """Find an image that has moved together with such a folder, and is not in it."""
        for root in self._roots:
            old, new = _different(root, self._folder)
            path = new + image.path[len(old) :]
            if old and image.path.startswith(f"{old}/") and is_same(image, path):
                return path
        return None


class Strangers:
    """Images with the names of those on record: the same ones, moved, or those of another set.

    One whose old file is gone is the same if its content is. Of the others their folder decides,
    which has moved or was copied if more than half of these images have the content on record. A
    copy counts only if the store was copied with it: else it is another set.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen, self._same = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._doubtful: dict[int, tuple[str, tuple[str, str], bool]] = {}

    def add(self, number: int, image: ImageFile, path: str, *, same: bool) -> None:
        """Add an image with its path now, and whether its content is the same."""
        new = absolute(path)
        there = os.path.exists(image.path)
        if new == image.path or (there and is_one_file(image.path, path)):
            return
        old, now = _different(image.path, new)
        trees = (old or "/", now or "/")
        self._seen[trees] += 1
        self._same[trees] += same
        if there or not same:
            self._doubtful[number] = (image.path, trees, there)

    def found(self) -> dict[int, str]:
        """Give the files on record of the images that are others."""
        known = {trees for trees, seen in self._seen.items() if 2 * self._same[trees] > seen}
        copies = {trees for trees in known if self._is_copied(*map(Path, trees))}
        return {
            number: path
            for number, (path, trees, there) in self._doubtful.items()
            if trees not in (copies if there else known)
        }

    def _is_copied(self, old: Path, new: Path) -> bool:
        """Whether the store is in a tree together with what is a copy there."""
        return is_within(self._store.folder, new) and not is_within(old, new)


def recognise(pairs: Mapping[str, str], known: Iterable[ImageFile], folder: str) -> Moves:
    """Find the folders that have moved, from some images with their old and new paths.

    ``known`` are the files on record that are not where they were.
    """
    roots = set()
    for old, new in pairs.items():
        tail = new[len(folder) :]
        if new.startswith(f"{folder}/") and old.endswith(tail) and old != new:
            roots.add(old[: -len(tail)])
    below: dict[str, list[ImageFile]] = {root: [] for root in roots}
    for image in known if roots else ():
        for above in _above(image.path):
            if above in roots:
                below[above].append(image)
    found = []
    for root, images in below.items():
        some = images[:: -(-len(images) // _COMPARED)]
        there = sum(is_same(image, folder + image.path[len(root) :]) for image in some)
        if there > 1 and len(some) - there <= max(1, len(some) // 10):
            found.append(root)
    return Moves(found, folder)


def is_same(image: ImageFile, path: str) -> bool:
    """Whether the file of an image is at another path now."""
    check()
    return not is_gone(path) and image.now(path) is not None


def is_one_file(path: str, other: str) -> bool:
    """Whether two paths are those of one file."""
    with suppress(OSError):
        return os.path.samefile(path, other)
    return False


def _above(path: str) -> Iterator[str]:
    """Give the folders above a path, the nearest first."""
    while path != (path := os.path.dirname(path)):
        yield path


def _different(old: str, new: str) -> tuple[str, str]:
    """Leave out the end that two paths have in common."""
    while os.path.basename(old) and os.path.basename(old) == os.path.basename(new):
        old, new = os.path.dirname(old), os.path.dirname(new)
    return old.rstrip("/"), new.rstrip("/")
