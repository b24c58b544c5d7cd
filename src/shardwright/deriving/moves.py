"""Folders of images that have moved since their images were derived.

The facts of an image have its absolute path, which a moved or copied project no longer fits. A
folder is recognised by what is in it: images on record below the old one lie at the same place
below the folder that is given, with the same content. If the store has moved, or was copied,
together with the folder, more than half of them are enough. Else it must be nearly all, and no
file may be left at the old place: the images may have been divided among several folders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from shardwright.interrupts import check
from shardwright.storage.paths import above, absolute, is_gone
from shardwright.storage.urls import is_within
from shardwright.store import facts, paths
from shardwright.store.facts import ImageFile
from shardwright.store.store import Store

_COMPARED = 256  # images of a folder, at most


class Moves:
    """The folders that are now the one given."""

    def __init__(
        self,
        folder: str,
        alone: Collection[str] = (),
        along: Collection[str] = (),
        doubtful: Collection[str] = (),
    ) -> None:
        """Take the folders that moved alone, and those along with the store: sure or doubtful."""
        self._folder = folder
        self._alone, self._along, self._doubtful = alone, along, doubtful

    def now(self, path: str) -> str | None:
        """Give where an image of a moved folder is now, or would be; None if it was in none.

        What was left behind by a folder that moved alone is still an image of the store.
        """
        if (new := self._below(path, self._along)) is not None:
            return new
        new = self._below(path, self._alone)
        return new if new is not None and is_gone(path) else None

    def perhaps(self, path: str) -> str | None:
        """Give where an image would be now, if its folder moved along, of which little is here."""
        return self._below(path, self._doubtful)

    def likely(self, path: str) -> str:
        """Give where a file is now if its folder has moved, or may have; else where it was."""
        return self.now(path) or self.perhaps(path) or path

    def beside(self, image: ImageFile) -> str | None:
        """Find an image that has moved together with such a folder, and is not in it."""
        for root in (*self._alone, *self._along):
            old, new = _different(root, self._folder)
            path = new + image.path[len(old) :]
            if old and image.path.startswith(f"{old}/") and is_same(image, path):
                return path
        return None

    def _below(self, path: str, roots: Collection[str]) -> str | None:
        for each in above(os.path.dirname(path)) if roots else ():
            if each in roots:
                return self._folder + path[len(each) :]
            if each == self._folder:  # it is below the given one, which may be below the old one
                return None
        return None


NOT_MOVED = Moves("")


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


def recognise(
    roots: Iterable[str | None], folder: str, store: Store, *, alone: bool = True
) -> Moves:
    """Find which folders have moved, of those that may have, and of those that the store names.

    Those that moved ``alone`` matter only if images are missing: else nothing is read for them.
    """
    earlier = set(paths.earlier(Path(folder), store))
    named = {root for root in (*roots, *earlier) if root}
    along = {root for root in named if root in earlier or _is_along(root, folder, store)}
    below: dict[str, list[ImageFile]] = {root: [] for root in (named if alone else along)}
    for image in (entry.image for _, entry in facts.read(store) if entry.image) if below else ():
        for each in above(os.path.dirname(image.path)):
            if each == folder:
                break
            if each in below and (each in along or is_gone(image.path)):
                below[each].append(image)
    counts = {root: _compared(root, images, folder) for root, images in below.items()}
    sure = {root for root in along if 2 * counts[root][0] > counts[root][1] or not below[root]}
    nearly = {
        root
        for root, (there, some) in counts.items()
        if root not in along and there > 1 and some - there <= max(1, some // 10)
    }
    return Moves(folder, nearly, sure, along - sure)


def root_of(old: str, new: str, folder: str) -> str | None:
    """Give the folder of which an image would be that moved to the given one."""
    tail = new[len(folder) :]
    fits = new.startswith(f"{folder}/") and old.endswith(tail) and old != new
    return old[: -len(tail)] if fits else None


def _compared(root: str, images: list[ImageFile], folder: str) -> tuple[int, int]:
    """Count the images that are at their place below the given folder, of some."""
    some = images[:: -(-len(images) // _COMPARED) or 1]
    return sum(is_same(image, folder + image.path[len(root) :]) for image in some), len(some)


def _is_along(root: str, folder: str, store: Store) -> bool:
    """Whether the store is in the tree that has moved; not if it names the folder as another."""
    old, new = (Path(tree or "/") for tree in _different(root, folder))
    inside = is_within(store.folder, new) and not is_within(old, new)
    return inside and not paths.is_named(Path(root), store)


def is_same(image: ImageFile, path: str) -> bool:
    """Whether the file of an image is at another path now."""
    check()
    return not is_gone(path) and image.now(path) is not None


def is_one_file(path: str, other: str) -> bool:
    """Whether two paths are those of one file."""
    with suppress(OSError, ValueError):  # a record may hold what is no path
        return os.path.samefile(path, other)
    return False


def _different(old: str, new: str) -> tuple[str, str]:
    """Leave out the end that two paths have in common."""
    while os.path.basename(old) and os.path.basename(old) == os.path.basename(new):
        old, new = os.path.dirname(old), os.path.dirname(new)
    return old.rstrip("/"), new.rstrip("/")
