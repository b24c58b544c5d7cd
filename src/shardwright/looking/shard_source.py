"""Shards to look at: a shard folder, a split folder with its parts, or a URL."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.comparing.parts import read_vectors
from shardwright.errors import DamageError, ShardwrightError, UsageError
from shardwright.interrupts import check
from shardwright.looking.sources import BucketCount, Member, Source, by_size
from shardwright.looking.table import IMAGE_HASH, Builder, Table
from shardwright.progress import Progress, quantity
from shardwright.recipes import JSON_SUFFIX, SPECIFICATION, Component, Recipe
from shardwright.reporting.rows import CUT_AT, READY
from shardwright.shards.format import index, records
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.shards.format.records import SampleFacts
from shardwright.shards.reader.catalog import Catalog, Shard, open_catalog
from shardwright.shards.reader.view import View
from shardwright.storage.fetched import folder_at, listable
from shardwright.storage.pieces import Folder, Piece
from shardwright.storage.urls import Location
from shardwright.store.arrays import widened
from shardwright.store.facts import CROPPED, ENLARGED, LOST, TOKENS
from shardwright.store.records import Record

_GROUP = 256  # samples that are read together
_INDEXES = 64  # that are kept in memory
_NOTE_EVERY = 100_000  # records between two lines of a log
_CAPTION = "txt"
_OF_RECORDS = (JSON_SUFFIX, _CAPTION)
_UNKNOWN = Recipe(components=(), buckets=())


class Part:
    """One shard folder, and where its samples begin in the table."""

    def __init__(self, name: str | None, folder: Folder, catalog: Catalog, first: int) -> None:
        self.name, self.folder, self.catalog, self.first = name, folder, catalog, first
        self.view = View(folder, catalog)
        self.index = lru_cache(_INDEXES)(self._index)
        # Of another tool, perhaps without JSON members.
        self.is_foreign = catalog.recipe is None or JSON_SUFFIX not in catalog.members

    def read(self, number: int, field: str) -> Any:  # noqa: ANN401 - dict, array or bytes
        """Read one member of one sample."""
        return next(self.view.narrowed(field).samples([number]))[field]

    def shard_of(self, number: int) -> tuple[Shard, int]:
        """Find the shard of a sample, and the number of its first one."""
        place = bisect_right(self.catalog.firsts, number) - 1
        return self.catalog.shards[place], self.catalog.firsts[place]

    def _index(self, shard: Shard) -> ShardIndex | None:
        if not shard.index_xxh3:
            return None
        name = index.index_name(shard.path)
        (data,) = self.folder.read_files([name])
        return index.decode(data or b"", f"{self.folder.name}/{name}")


class ShardSource(Source):
    """The samples of shards, in the order of their files."""

    kind = "shards"

    def __init__(self, name: str, folders: Mapping[str | None, Folder], progress: Progress) -> None:
        self.is_trusted = all(folder.is_trusted for folder in folders.values())
        self.parts: list[Part] = []
        first = 0
        for part, folder in folders.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is no manifest
                catalog = open_catalog(folder)
            self.parts.append(Part(part, folder, catalog, first))
            first += len(catalog.places)
        self._firsts = [part.first for part in self.parts]
        settings = {n: dict(c.settings) for n, c in self.parts[0].catalog.components.items()}
        super().__init__(name, _recipe(self.parts[0].catalog), settings)
        if any(_recipe(part.catalog) != self.recipe for part in self.parts):
            fix = "look at one of them"
            raise UsageError("its parts have different recipes", path=name, fix=fix)
        self.table = self._read(first, progress)
        self.buckets = [bucket for part in self.parts for bucket in _buckets(part)]

    def _read(self, total: int, progress: Progress) -> Table:
        builder = Builder()
        progress.phase("read", total, "records")
        for part in self.parts:
            sizes = part.catalog.places[:, :, 1].sum(axis=1).tolist()
            for shard, first, found in self._records(part):
                check()
                if not found:  # no tool of ours writes an empty shard
                    continue
                before, count = len(builder.ids), len(found)
                columns = {
                    "aspect_bucket": [shard.bucket] * count,
                    "part": [part.name] * count,
                    "state": [READY] * count,
                    "sample_bytes": sizes[first : first + count],
                }
                rows, facts = zip(*found, strict=True)
                builder.add(rows, columns | _columns(facts))
                progress.advance(count)
                if (before + count) // _NOTE_EVERY > before // _NOTE_EVERY:
                    progress.note(f"{before + count:,} of {quantity(total, 'records')}")
        return builder.table()

    def _records(self, part: Part) -> Iterator[tuple[Shard, int, list[tuple[Record, SampleFacts]]]]:
        """Read the records of each shard: from their file, else from the JSON members."""
        shards = part.catalog.shards
        names = [records.records_name(shard.path) for shard in shards if shard.records_xxh3]
        files = part.folder.read_files(names)
        for shard, first in zip(shards, part.catalog.firsts, strict=True):
            found: list[tuple[Record, SampleFacts]] = []
            if shard.records_xxh3:
                path = f"{part.folder.name}/{records.records_name(shard.path)}"
                with suppress(DamageError):
                    found += records.decode(next(files) or b"", path, shard.records_xxh3)
                if len(found) != shard.samples:
                    self.notes.append(f"{path} is damaged or missing; run shardwright verify")
            if len(found) != shard.samples:
                members = _members(part, first, shard.samples)
                found = [(record, SampleFacts()) for record in members]
            yield shard, first, found

    def _at(self, number: int) -> tuple[Part, int]:
        part = self.parts[bisect_right(self._firsts, number) - 1]
        return part, number - part.first

    def record(self, number: int) -> Record:
        part, place = self._at(number)
        (record,) = (
            _members(part, place, 1) if part.is_foreign else (part.read(place, JSON_SUFFIX),)
        )
        return record

    def place(self, number: int) -> str:
        part, place = self._at(number)
        shard, first = part.shard_of(place)
        folder = self.name if part.name is None else f"{self.name}/{part.name}"
        return f"{folder}/{shard.path}, sample {place - first}"

    def members(self, number: int) -> list[str]:
        return [name for name in self._at(number)[0].catalog.members if name != JSON_SUFFIX]

    def member(self, number: int, name: str) -> Member:
        part, place = self._at(number)
        component = self.recipe.arrays.get(name)
        if name not in part.catalog.members:
            return Member(name, component, None, 0, "", fault="missing")
        column = part.catalog.members.index(name)
        offset, size = part.catalog.places[place, column].tolist()
        shard, first = part.shard_of(place)
        fault, value, xxh3 = None, None, None
        try:
            value = part.read(place, name)
            if found := part.index(shard):
                xxh3 = f"{found.member(place - first, column).xxh3:016x}"
                (data,) = part.folder.views([Piece(shard, offset, size)])
                if xxhash.xxh3_64_hexdigest(data) != xxh3:
                    fault = "its bytes do not match the checksum"
            if name in part.view.halves:
                part.view.require_bits(name, value)
                value = widened(value)
        except ShardwrightError as error:
            fault = error.what
        return Member(name, component, value, size, f"byte {offset:,}", xxh3, fault)

    def vectors(self, component: Component) -> Iterator[NDArray[Any]]:
        for part in self.parts:
            yield from read_vectors(part.folder, part.catalog, component)


def open_shards(location: str, progress: Progress) -> ShardSource:
    """Open what is at a path or a URL."""
    parts: Mapping[str, Location] = {}
    if (folder := listable(location)) is not None and not is_packed(folder):
        parts = parts_of(folder)
    places = dict[str | None, str]((name, str(part)) for name, part in parts.items())
    paths = places or {None: location}
    folders = {name: folder_at(path, forks=False) for name, path in paths.items()}
    return ShardSource(location, folders, progress)


def _recipe(catalog: Catalog) -> Recipe:
    """Give the recipe of shards; without a manifest it is a guess by their members."""
    if catalog.recipe is not None:
        return catalog.recipe
    return SPECIFICATION if set(SPECIFICATION.suffixes) == set(catalog.members) else _UNKNOWN


def _buckets(part: Part) -> Iterator[BucketCount]:
    counts: dict[str, list[int]] = {}
    for shard in part.catalog.shards:
        count = counts.setdefault(shard.bucket, [0, 0, 0])
        for place, more in enumerate((shard.samples, shard.bytes, 1)):
            count[place] += more
    for name in sorted(counts, key=by_size):
        yield BucketCount(name, part.name, *counts[name])


def _members(part: Part, first: int, count: int) -> Iterator[Record]:
    """Read the JSON members of some samples; without one, the key is the id.

    Other tools write the caption as a member of its own.
    """
    fields = tuple(name for name in _OF_RECORDS if name in part.catalog.members)
    view = View(
        part.folder.renewed(),
        part.catalog,
        np.arange(first, first + count),
        fields or part.catalog.members[:1],
    )
    for sample in view.in_order(_GROUP):
        check()
        record: Record = {"image_id": sample["__key__"], **sample.get(JSON_SUFFIX, {})}
        if _CAPTION in sample:
            record.setdefault("caption", sample[_CAPTION].decode(errors="replace"))
        yield record


def _columns(facts: Sequence[SampleFacts]) -> dict[str, list[Any]]:
    """Give facts as columns of a table."""
    columns: dict[str, list[Any]] = {
        ENLARGED: [known.enlarged for known in facts],
        CROPPED: [known.cropped for known in facts],
        IMAGE_HASH: [known.image_xxh3 for known in facts],
    }
    for prefix, found in (
        (TOKENS, [known.tokens for known in facts]),
        (LOST, [known.tokens_lost for known in facts]),
        (CUT_AT, [known.cut_at for known in facts]),
    ):
        for name in dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, found)))):
            columns[prefix + name] = [counts.get(name) for counts in found]
    return columns
