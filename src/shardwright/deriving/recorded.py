"""What a store has on record of images, and which images here these are.

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
from dataclasses import replace
from pathlib import Path

from shardwright import regular
from shardwright.deriving.captions import CaptionFiles
from shardwright.deriving.sources import Source, contested, sharing, spelt
from shardwright.interrupts import check
from shardwright.storage import files
from shardwright.storage.paths import above, absolute, exists, is_gone
from shardwright.storage.urls import is_within
from shardwright.store import facts, paths, records
from shardwright.store.facts import ImageFile
from shardwright.store.records import Record
from shardwright.store.store import Store

_COMPARED = 256  # images of a folder, at most


def recorded_text(record: Record | None, field: str) -> str | None:
    """Give a text of a record, if it has one."""
    text = record.get(field) if record else None
    return text if isinstance(text, str) and text.strip() else None


def id_of(record: Record) -> str:
    """Give the image id of a record; blank if there is none."""
    image_id, path = record.get("image_id"), record.get("image_path")
    if image_id is None and isinstance(path, str):  # as in Stage 1
        image_id = records.image_id_of(path)
    return image_id if isinstance(image_id, str) else ""


def record_at(store: Store, offset: int) -> Record:
    """Read the record of a line again."""
    with files.explained(store.jsonl), regular.opened(store.jsonl) as file:
        file.seek(offset)
        return records.parse(file.readline().rstrip(b"\r\n"))


def owners(sources: list[Source], store: Store) -> dict[str, Source]:
    """Find the image on record for each id that several images have."""
    shared = contested(sources)
    placed = on_record(sources, store) if shared else {}
    owners = {image_id: sources[n] for image_id, n in placed.items() if image_id in shared}
    for _, record in records.walk(store.jsonl, records.parse) if shared else ():
        image_id, path = id_of(record), record.get("image_path")
        if image_id in shared and image_id not in owners and isinstance(path, str):
            those = [s for s in shared[image_id] if not other_image(path, s.path)]
            exact = [s for s in those if os.path.normpath(s.path) == os.path.normpath(path)]
            if len(exact or those) == 1:
                owners[image_id] = (exact or those)[0]
    return owners


def on_record(sources: list[Source], store: Store, folder: str | None = None) -> dict[str, int]:
    """Give the number of each image whose path is on record, by its id there.

    With ``folder``, that of the images, also if it has moved since.
    """
    at = {absolute(s.path): number for number, s in enumerate(sources) if not s.fault}
    found = {}
    for _, names in records.walk(store.jsonl, records.names):
        path = absolute(names.image_path) if isinstance(names.image_path, str) else ""
        if path in at and isinstance(names.image_id, str):
            found[names.image_id] = at[path]
    moves = NOT_MOVED if folder is None else _moves(at, absolute(folder), store)
    for _, entry in facts.read(store):  # a path in a record may be relative to another folder
        if entry.image is not None:
            found.pop(entry.image_id, None)
            path = moves.now(entry.image.path) or entry.image.path
            if path in at:
                found[entry.image_id] = at[path]
    return found


def with_ids(
    sources: list[Source],
    root: str,
    store: Store,
    captions: CaptionFiles | None = None,
    *,
    keep: bool = True,
) -> list[Source]:
    """Give the images below a folder the ids that the recipe chooses; blank where there is none.

    An image whose path is on record keeps its id if the ids are made as before (``keep``): what
    is packed already goes by it.
    """
    how = store.recipe.ids
    if how == "name":
        return sources
    placed = on_record(sources, store, root) if keep or how == "captions" else {}
    known = {number: image_id for image_id, number in placed.items()}

    def chosen(number: int, source: Source) -> str:
        before = known.get(number, "")
        if how == "path":
            return before or spelt(source.path, root)
        return (keep and before) or (captions and captions.image_id(source)) or before

    return [
        source if source.fault else replace(source, image_id=chosen(number, source))
        for number, source in enumerate(sharing(sources))
    ]


def _moves(at: Collection[str], folder: str, store: Store) -> Moves:
    """Find the folders that have moved, whatever the ids of their images are."""
    tails = {path[len(folder) :] for path in at}
    old = (e.image.path for _, e in facts.read(store) if e.image and e.image.path not in at)
    roots = {
        each
        for path in old
        for each in above(os.path.dirname(path))
        if os.path.basename(each) == os.path.basename(folder) and path[len(each) :] in tails
    }
    return recognise(roots, folder, store)


def other_image(recorded: object, path: str) -> str | None:
    """Give the image of a record, if it is not this one.

    The same file by another path is this one. So is a file of the same name if the recorded one
    does not exist: folders are moved.
    """
    if not isinstance(recorded, str) or os.path.normpath(recorded) == os.path.normpath(path):
        return None
    if os.path.basename(recorded) == os.path.basename(path) and not exists(recorded):
        return None
    return None if is_one_file(recorded, path) else recorded


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
