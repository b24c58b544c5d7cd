"""Copies in several parts of a split folder, for example in training and in validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.comparing import copies, similar, vectors
from shardwright.errors import DamageError
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe
from shardwright.shards.format import index, manifest, records
from shardwright.shards.format.manifest import Manifest, ShardEntry
from shardwright.shards.reader.catalog import Catalog, open_catalog
from shardwright.shards.reader.folder import Folder, LocalFolder
from shardwright.shards.reader.view import View
from shardwright.storage.urls import Location
from shardwright.store.arrays import widened

_GROUP = 256  # samples that are read together


class Copy(NamedTuple):
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

    identical: list[Copy] = field(default_factory=list)
    near: list[Copy] = field(default_factory=list)  # groups without identical files in two parts
    vector: str | None = None  # the component by which they were compared
    not_searched: str | None = None  # why near ones were not searched, although there are vectors


def find_copies(parts: Mapping[str, Location], progress: Progress) -> InParts:
    """Find copies in several parts; raise if a manifest or the records are damaged."""
    listed = {name: manifest.load_manifest(folder) for name, folder in parts.items()}
    done = {name: found for name, found in listed.items() if found is not None and found.shards}
    ids: list[str] = []
    texts: list[str | None] = []
    numbers: list[int] = []  # of the part of each sample
    for number, (name, found) in enumerate(done.items()):
        for entry in found.shards:
            check()
            for image_id, text in _read(parts[name], entry):
                ids.append(image_id)
                texts.append(text)
                numbers.append(number)
    vector, not_searched = _vector(done), None
    if vector is not None and not all(isinstance(folder, Path) for folder in parts.values()):
        vector, not_searched = None, "the shards are at a URL"
    elif vector is not None and len(ids) > similar.EXACT_MOST:
        vector, not_searched = None, f"there are more than {similar.EXACT_MOST:,} samples"
    read = None
    if vector is not None and len(done) > 1:
        blocks = (block for name in done for block in _blocks(parts[name], vector))
        read = vectors.read(blocks, len(ids), vector.shape_for(0, 0)[0], progress)
    found_copies = copies.find(copies.hashes_of(texts), read, progress)
    names = list(done)
    pairs = found_copies.across(np.array(numbers, np.int64), similar.DEFAULT)
    all_copies = [
        Copy(ids[one], names[numbers[one]], ids[other], names[numbers[other]], similarity)
        for one, other, similarity in pairs
    ]
    return InParts(
        [copy for copy in all_copies if copy.similarity is None],
        [copy for copy in all_copies if copy.similarity is not None],
        vector.name if vector else None,
        not_searched,
    )


def _read(folder: Location, entry: ShardEntry) -> Iterator[tuple[str, str | None]]:
    """Read the id of each sample of a shard, and the hash of its image, if that is on record."""
    ids = index.load_listed(folder, entry).head.ids
    known: list[str | None] = []
    if entry.records_xxh3:
        lines = records.load(folder, entry.path, entry.records_xxh3)
        known = [facts.image_xxh3 for _, facts in lines]
    return zip(ids, known if len(known) == len(ids) else [None] * len(ids), strict=True)


def _vector(done: Mapping[str, Manifest]) -> Component | None:
    """Give the component that describes an image, if all parts have the same recipe."""
    recipes: list[Recipe] = [found.samples_of() for found in done.values()]
    same = bool(recipes) and all(recipe == recipes[0] for recipe in recipes)
    return copies.image_vector(recipes[0]) if same else None


def _blocks(folder: Location, component: Component) -> Iterator[NDArray[Any]]:
    assert isinstance(folder, Path)
    return read_vectors(lambda: LocalFolder(folder), open_catalog(LocalFolder(folder)), component)


def read_vectors(
    opened: Callable[[], Folder], catalog: Catalog, component: Component
) -> Iterator[NDArray[Any]]:
    """Read the vector of every sample of a shard folder, which is opened for each shard."""
    width = component.shape_for(0, 0)[0]
    for shard, first in zip(catalog.shards, catalog.firsts, strict=True):
        folder = opened()
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
