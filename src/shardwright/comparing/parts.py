"""Copies in several parts of a split folder, for example in training and in validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.comparing import copies, similar, vectors
from shardwright.comparing.copies import Hashes
from shardwright.comparing.similar import Numbers
from shardwright.errors import DamageError, ShardwrightError
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe
from shardwright.shards.format import index, manifest, records
from shardwright.shards.format.manifest import Manifest, PackSettings, ShardEntry
from shardwright.shards.format.parts import parts_of
from shardwright.shards.reader.catalog import Catalog, open_catalog
from shardwright.shards.reader.view import View
from shardwright.storage.fetched import folder_at
from shardwright.storage.pieces import Folder
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined
from shardwright.store import facts
from shardwright.store.arrays import widened
from shardwright.store.commands import command, quoted
from shardwright.store.store import Store

_GROUP = 256  # samples that are read together
_LIST = "copies.jsonl"


@dataclass(frozen=True)
class Copy:
    """A sample of one part, and a copy of it in another."""

    image_id: str
    part: str
    other: str
    other_part: str
    similarity: float | None  # None of identical files

    def __str__(self) -> str:
        return f"{self.image_id} in {self.part} and {self.other} in {self.other_part}"


@dataclass(frozen=True)
class InParts:
    """The copies in several parts: one for each group of them."""

    identical: list[Copy]
    near: list[Copy]  # of groups without identical files in several parts
    vector: str | None  # the component by which they were compared
    least: float  # their cosine
    not_searched: str | None  # why near ones were not searched, although there is a vector
    fix: str


def find_copies(top: Location, progress: Progress) -> InParts | None:
    """Find copies in several parts of a split folder; None if there are not several.

    Damage is for verify to report: here, it only means that nothing can be searched.
    """
    try:
        return _find(top, progress)
    except ShardwrightError as error:
        return InParts([], [], None, similar.DEFAULT, str(error), "")


def _find(top: Location, progress: Progress) -> InParts | None:
    parts = parts_of(top)
    listed = {name: manifest.load_manifest(folder) for name, folder in parts.items()}
    done = {name: found for name, found in listed.items() if found is not None and found.shards}
    if len(done) < 2:
        return None
    samples = _Samples(parts, done)
    vector, not_searched = _vector(done), None
    if vector is not None and place_at(top).reads_are_requests:
        vector, not_searched = None, "the shards are at a URL"
    elif vector is not None and len(samples.hashes) > similar.EXACT_MOST:
        vector, not_searched = None, f"there are more than {similar.EXACT_MOST:,} samples"
    read = None
    if vector is not None:
        blocks = (block for name in done for block in _blocks(parts[name], vector))
        read = vectors.read(blocks, len(samples.hashes), vector.shape_for(0, 0)[0], progress)
    found = copies.find(samples.hashes, read, progress)
    pairs = [
        Copy(
            *samples.name(one),
            *samples.name(other),
            None if similarity is None else round(similarity, 4),
        )
        for one, other, similarity in found.across(samples.parts, similar.DEFAULT)
    ]
    last = next(iter(done.values())).runs[-1]
    return InParts(
        [pair for pair in pairs if pair.similarity is None],
        [pair for pair in pairs if pair.similarity is not None],
        vector.name if vector else None,
        similar.DEFAULT,
        not_searched,
        _fix(top, top, last.settings, is_build=last.is_build),
    )


def foresee_copies(
    samples: Sequence[tuple[str, str]],
    store: Store,
    top: Location,
    settings: PackSettings,
    new: bool,
    progress: Progress,
) -> InParts | None:
    """Find identical files among samples that would be packed, each with its part.

    None if there are not several parts. ``new`` is whether the folder ``top`` has no shards yet.
    """
    ids, parts = zip(*samples, strict=True) if samples else ((), ())
    names = list(dict.fromkeys(parts))
    if len(names) < 2:
        return None
    known = {  # as they would be on record in the shards
        one.image_id: one.image.xxh3
        for _, one in facts.read(store)
        if one.image and not one.outdated
    }
    numbers = np.fromiter(map(names.index, parts), np.int64, len(parts))
    found = copies.find(copies.hashes_of(map(known.get, ids)), None, progress)
    return InParts(
        [
            Copy(ids[one], parts[one], ids[other], parts[other], None)
            for one, other, _ in found.across(numbers, similar.DEFAULT)
        ],
        [],
        None,
        similar.DEFAULT,
        "this is a dry run" if copies.image_vector(store.recipe) else None,
        _fix(store.folder, top, settings, new=new),
    )


class _Samples:
    """All samples of the parts; of each, only two numbers are in memory."""

    def __init__(self, parts: Mapping[str, Location], done: Mapping[str, Manifest]) -> None:
        self._shards = [(name, entry) for name, found in done.items() for entry in found.shards]
        self._folders, names = parts, list(done)
        counts = [entry.samples for _, entry in self._shards]
        self._ends = np.cumsum(counts)
        numbers = [names.index(name) for name, _ in self._shards]
        self.parts: Numbers = np.repeat(np.array(numbers, np.int64), counts)
        hashes = (_hashes(parts[name], entry) for name, entry in self._shards)
        self.hashes: Hashes = np.concatenate(list(hashes))
        self._ids: dict[int, Sequence[str]] = {}  # by shard, once one of them is asked for

    def name(self, number: int) -> tuple[str, str]:
        """Give the id of a sample, and its part."""
        place = int(np.searchsorted(self._ends, number, side="right"))
        part, entry = self._shards[place]
        if place not in self._ids:
            self._ids[place] = index.load_listed(self._folders[part], entry).head.ids
        return self._ids[place][number - int(self._ends[place])], part  # from the end


def _hashes(folder: Location, entry: ShardEntry) -> Hashes:
    """Read the hashes of the files of a shard's samples, as far as they are on record."""
    check()
    known: list[str | None] = []
    if entry.records_xxh3:
        lines = records.load(folder, entry.path, entry.records_xxh3)
        known = [facts.image_xxh3 for _, facts in lines]
    return copies.hashes_of(known if len(known) == entry.samples else [None] * entry.samples)


def _fix(
    source: Location,
    top: Location,
    settings: PackSettings,
    *,
    is_build: bool = False,
    new: bool = False,
) -> str:
    """Say how to keep copies of a source in one part of a folder, as far as the split allows it."""
    split, verb = settings.split, "build" if is_build else "pack"
    by = split.by if split else None
    file = str(joined(top, by)) if split and by and split.has_groups else _LIST
    look = command("look", str(source), "--duplicates", file)
    if split is None or (by and not split.has_groups):  # a column keeps other samples together
        return f"to list them, run {look}"
    if by and not is_build:
        return f"to keep them in one part, run {look}, then pack{'' if new else ' with --sync'}"
    flags = [*replace(split, by=file).flags(), *settings.layout()]
    how = "with --overwrite" if place_at(top).can_replace else "into another folder"
    again = "with" if new else f"all of it again {how}"
    words = " ".join(map(quoted, flags))
    return f"to keep them in one part, run {look}, then {verb} {again} {words}"


def _vector(done: Mapping[str, Manifest]) -> Component | None:
    """Give the component that describes an image, if all parts have the same recipe."""
    recipes: list[Recipe] = [found.samples_of() for found in done.values()]
    same = bool(recipes) and all(recipe == recipes[0] for recipe in recipes)
    return copies.image_vector(recipes[0]) if same else None


def _blocks(folder: Location, component: Component) -> Iterator[NDArray[Any]]:
    opened = folder_at(str(folder), forks=False)
    return read_vectors(opened, open_catalog(opened), component)


def read_vectors(opened: Folder, catalog: Catalog, component: Component) -> Iterator[NDArray[Any]]:
    """Read the vector of every sample of a shard folder, and hold no shard that was read."""
    width = component.shape_for(0, 0)[0]
    for shard, first in zip(catalog.shards, catalog.firsts, strict=True):
        folder = opened.renewed()
        if component.suffix not in catalog.members:
            what = f"has no {component.suffix}, although its recipe does"
            raise DamageError(what, path=folder.name, fix="run shardwright verify")
        numbers = np.arange(first, first + shard.samples)
        view = View(folder, catalog, numbers, (component.suffix,))
        samples = view.in_order(_GROUP)
        while some := list(islice(samples, _GROUP)):
            found = [sample[component.suffix] for sample in some]
            if any(vector.shape != (width,) for vector in found):
                what = f"{component.suffix}: vectors are not of {width} numbers"
                raise DamageError(what, path=folder.name, fix="run shardwright verify")
            block = np.stack(found)
            yield widened(block) if view.halves else block
