"""What became of the images on record: which are gone, and which have another name now."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

from msgspec import structs

from shardwright.deriving.recorded import (
    NOT_MOVED,
    Moves,
    is_one_file,
    is_same,
    on_record,
    recognise,
    root_of,
)
from shardwright.deriving.sources import Source, contested, problems
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.storage.paths import absolute, is_absolute, is_gone
from shardwright.store import facts, records
from shardwright.store.facts import Facts, ImageFile
from shardwright.store.store import Store


@dataclass(frozen=True)
class Changes:
    """The images on record that are not where they were, by their id."""

    absent: dict[str, str]  # the paths at which there is no file any more
    renamed: dict[str, int]  # the number of the image as it is now
    kept: dict[int, str]  # ids that stay, because another image has the new one
    folder: str  # of the images, absolute
    also: str | None = None  # another folder whose missing images count as gone
    # Where images that are not found here are now, or would be: their folder has moved.
    relocated: dict[str, str] = field(default_factory=dict)
    # The paths on record of images that are not found, and of whose files nothing is known.
    unknown: dict[str, str] = field(default_factory=dict)
    # The paths of images that are not here, but in a folder of which this one may be a copy.
    originals: dict[str, str] = field(default_factory=dict)
    moves: Moves = NOT_MOVED

    @property
    def gone(self) -> dict[str, str]:
        """Give the paths of images that were below the folder, and were not renamed either."""
        below = self._below(self.absent, self.folder)
        others = self.absent | self.unknown | self.originals
        return below | (self._below(others, self.also) if self.also else {})

    @property
    def undecided(self) -> dict[str, str]:
        """Give the paths of images that are not found here, and may not be gone."""
        others = self.absent | self.unknown | self.originals
        decided = self.gone.keys() | self.renamed.keys()
        return {i: path for i, path in others.items() if i not in decided}

    def _below(self, paths: dict[str, str], folder: str) -> dict[str, str]:
        """Choose those that were below a folder, by whichever links."""
        start, real = os.path.join(folder, ""), os.path.join(os.path.realpath(folder), "")

        @cache
        def is_below(above: str) -> bool:
            return os.path.join(above, "").startswith(start) or os.path.join(
                os.path.realpath(above), ""
            ).startswith(real)

        left = ((i, path) for i, path in paths.items() if i not in self.renamed)
        return {i: path for i, path in left if is_below(os.path.dirname(path))}

    def relocations(self, store: Store) -> Iterator[Facts]:
        """Give the facts of images whose folder has moved, with their paths as they are now."""
        for _, entry in facts.read(store) if self.relocated else ():
            path = self.relocated.get(entry.image_id)
            if entry.image is not None and path not in (None, entry.image.path):
                yield structs.replace(entry, image=structs.replace(entry.image, path=path))

    def with_recorded_ids(self, sources: list[Source]) -> list[Source]:
        """Give images the id that they have on record, where they get no other."""
        now = {n: old for old, n in self.renamed.items() if not sources[n].image_id} | self.kept
        return [
            replace(source, image_id=now[number]) if number in now else source
            for number, source in enumerate(sources)
        ]

    def names(self, sources: list[Source]) -> dict[str, str]:
        """Give the new ids of images whose id is another one now."""
        now = {old: sources[number].image_id for old, number in self.renamed.items()}
        return {old: new for old, new in now.items() if old != new}


def first_ids(changes: Changes, sources: list[Source], store: Store) -> dict[int, str]:
    """Give the first id of each image whose id is another one now, by its number."""
    names = changes.names(sources)
    before = facts.first_ids(store) if names else {}
    return {changes.renamed[old]: before.get(old, old) for old in names}


def find(
    sources: list[Source],
    folder: str,
    store: Store,
    progress: Progress | None = None,
    *,
    by_path: bool = False,
    also: str | None = None,
) -> Changes:
    """Find the images on record that are gone, or that have another name now.

    A file was renamed if its old path is gone and its content is that of one new file and of no
    other image, or of a file without an id. A file of the same id was moved if its old path is
    gone. Where ids are made in another way than before (``by_path``), a file whose path is on
    record with another id was renamed too. A folder that has moved is recognised by its images.
    """
    folder = absolute(folder)
    shared, bad = contested(sources), problems(sources, store.recipe)
    numbers = {source.image_id: n for n, source in enumerate(sources) if n not in bad}
    roots, missing = set[str | None](), False

    def displaced() -> Iterator[tuple[str, ImageFile, int | None, str]]:
        """Give images that are not where they were: their number and path now, if they are here."""
        for _, entry in facts.read(store):
            number = numbers.get(entry.image_id)
            here = "" if number is None else absolute(sources[number].path)
            if entry.image is not None and here != entry.image.path:
                yield entry.image_id, entry.image, number, here

    for _, image, number, here in displaced():
        roots.add(root_of(image.path, here, folder))
        missing = missing or (number is None and is_gone(image.path))
    moves = recognise(roots, folder, store, alone=missing)
    absent: dict[str, ImageFile] = {}
    moved: dict[str, int] = {}
    relocated, originals = dict[str, str](), dict[str, str]()
    for image_id, image, number, here in displaced() if roots else ():
        if image_id in shared:
            continue
        now = moves.now(image.path) or image.path
        if here == now and not is_gone(image.path):
            if not is_one_file(here, image.path):  # of a copy, the file in use is this one
                relocated[image_id] = here
        elif is_gone(now) or here == now:
            if number is not None and os.path.basename(here) == os.path.basename(image.path):
                moved[image_id] = number
            else:
                absent[image_id] = structs.replace(image, path=now)
        elif now != image.path:
            relocated[image_id] = now
        elif number is None and (copy := moves.perhaps(now)) and is_gone(copy):
            originals[image_id] = now
    renamed, kept = dict[str, int](), dict[int, str]()
    if absent:
        nameless = [n for n, source in enumerate(sources) if not (source.image_id or source.fault)]
        renamed = _same_content(
            absent, dict(numbers), nameless, sources, store, progress or Progress()
        )
    if by_path:
        renamed, kept = _same_path(renamed, bad, sources, folder, store)
    taken = set(renamed.values())
    for image_id in absent.keys() - renamed.keys():
        if image_id in numbers and numbers[image_id] not in taken:
            renamed[image_id] = numbers[image_id]  # replaced by a file of another format
    found = moved | renamed
    paths, elsewhere = _relocated(absent, found, moves, folder, store)
    return Changes(
        absent=paths,
        renamed=found,
        kept=kept,
        folder=folder,
        also=also,
        relocated=relocated | elsewhere,
        originals=originals,
        moves=moves,
    )


def _relocated(
    absent: dict[str, ImageFile], here: Container[str], moves: Moves, folder: str, store: Store
) -> tuple[dict[str, str], dict[str, str]]:
    """Give the paths at which images are missing now, and where those are that have moved.

    The images that are ``here`` have new paths already.
    """
    lost = {image_id: image for image_id, image in absent.items() if image_id not in here}
    found = {i: path for i, image in lost.items() if (path := moves.beside(image)) is not None}
    # Folders that have moved together with this one.
    beside = {os.path.dirname(lost[i].path): os.path.dirname(path) for i, path in found.items()}
    missing = {i: image.path for i, image in absent.items() if i not in found}
    for image_id, path in missing.items():
        above, name = os.path.split(path)
        missing[image_id] = os.path.join(beside.get(above, above), name)
    # In another folder, an image may be found by the path in its record, from here. An absolute one
    # may be that of the original of a copy.
    below = os.path.join(folder, "")
    away = {i: path for i, path in missing.items() if i in lost and not path.startswith(below)}
    for _, names in records.walk(store.jsonl, records.names) if away else ():
        image_id, given = names.image_id, names.image_path
        if isinstance(image_id, str) and image_id in away and isinstance(given, str):
            there = absolute(given)
            other = not is_absolute(given) and there != away[image_id]
            if other and is_same(lost[image_id], there):
                found[image_id] = there
                missing.pop(image_id, None)
    return missing, {i: path for i, path in missing.items() if i in lost} | found


def unknown(sources: list[Source], store: Store) -> dict[str, str]:
    """Give the images of records that are not found, and of whose files nothing is known."""
    known = {entry.image_id for _, entry in facts.read(store) if entry.image}
    known.update(source.image_id for source in sources)
    return {
        names.image_id: absolute(names.image_path)
        for _, names in records.walk(store.jsonl, records.names)
        if isinstance(names.image_id, str)
        and names.image_id not in known
        and isinstance(names.image_path, str)
        and is_gone(names.image_path)
    }


def _same_content(
    absent: dict[str, ImageFile],
    new: dict[str, int],
    nameless: list[int],
    sources: list[Source],
    store: Store,
    progress: Progress,
) -> dict[str, int]:
    """Match images that are gone with files that are new, by content that is unique among all.

    A file without an id could not be derived, so it takes the place of any image that had its
    content.
    """
    sizes = {image.bytes for image in absent.values()}
    for _, entry in facts.read(store):
        new.pop(entry.image_id, None)
    for _, names in records.walk(store.jsonl, records.names):  # those without facts
        if isinstance(names.image_id, str):
            new.pop(names.image_id, None)
    found: dict[str, list[int]] = {}
    progress.phase("look for renamed images", len(new) + len(nameless), "images")
    for number in (*new.values(), *nameless):
        check()
        progress.advance(1)
        with suppress(OSError):  # reported when it is derived
            path = sources[number].path
            if os.stat(path).st_size in sizes:
                found.setdefault(facts.image_file(path).xxh3, []).append(number)
    if not found:
        return {}
    seen = Counter(e.image.xxh3 for _, e in facts.read(store) if e.image and e.image.xxh3 in found)
    ids = {source.image_id for source in sources} if nameless else set()
    renamed = {}
    for old, image in absent.items():
        same = found.get(image.xxh3, [])
        free = [number for number in same if not sources[number].image_id and old not in ids]
        if free or len(same) == seen[image.xxh3] == 1:
            renamed[old] = free[0] if free else same[0]
            same.remove(renamed[old])
    return renamed


def _same_path(
    renamed: dict[str, int],
    bad: Container[int],
    sources: list[Source],
    folder: str,
    store: Store,
) -> tuple[dict[str, int], dict[int, str]]:
    """Add the images on record whose files have another id now; name those that keep their id."""
    by_number = {number: old for old, number in on_record(sources, store, folder).items()}
    moved = renamed | {
        old: number
        for number, old in by_number.items()
        if number not in bad and sources[number].image_id != old
    }
    wanted = {sources[number].image_id for number in moved.values()}
    known = {entry.image_id for _, entry in facts.read(store) if entry.image_id in wanted}
    for _, names in records.walk(store.jsonl, records.names) if wanted else ():
        if isinstance(names.image_id, str) and names.image_id in wanted:
            known.add(names.image_id)
    # A name that another image has is free only if that image gets another one.
    kept: dict[int, str] = {}
    while taken := {
        number: old
        for old, number in moved.items()
        if number not in kept
        and (name := sources[number].image_id) in known
        and (name not in moved or moved[name] in kept)
    }:
        kept |= taken
    return moved, kept
