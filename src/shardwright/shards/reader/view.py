"""A part of a shard folder: some samples, and some members of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.errors import DamageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes import BFLOAT16, LONGEST_NAME
from shardwright.shards.format import decode
from shardwright.shards.format.decode import BadMemberError
from shardwright.shards.format.tar import BLOCK
from shardwright.shards.reader.catalog import Catalog, Numbers
from shardwright.storage.pieces import COPY, Folder, Piece

Sample = dict[str, Any]


class View:
    """Samples by their numbers in the catalog; it can be pickled and forked."""

    def __init__(
        self,
        folder: Folder,
        catalog: Catalog,
        numbers: Numbers | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.catalog = catalog
        self.numbers = np.arange(len(catalog.places)) if numbers is None else numbers
        self.fields = fields or catalog.members
        self._columns = [catalog.members.index(field) for field in self.fields]
        self._suffixes = [f".{field}".encode() for field in self.fields]
        known = catalog.recipe.arrays if catalog.recipe else {}
        self.halves = [f for f in self.fields if f in known and known[f].dtype == BFLOAT16]

    def require_bits(self, field: str, array: NDArray[Any]) -> None:
        """Raise if an array of ``halves`` does not hold the bits of bfloat16."""
        if array.dtype != np.uint16:
            what = f"{field} is bfloat16, but one is {array.dtype}"
            raise DamageError(what, path=self.folder.name, fix=COPY)

    def narrowed(self, *fields: str) -> View:
        """View some members of the same samples."""
        return View(self.folder, self.catalog, self.numbers, fields)

    def sizes(self, numbers: Numbers) -> dict[str, Numbers]:
        """Look up the array sizes of some samples, by field."""
        return {
            field: self.catalog.places[numbers, column, 1]
            for field, column in zip(self.fields, self._columns, strict=True)
            if decode.is_array(field)
        }

    def ahead(self, groups: Iterable[Numbers]) -> Iterator[Numbers]:
        """Pass groups of samples on, after telling the folder to read a few ahead."""
        waiting: deque[tuple[Numbers, list[Piece]]] = deque()
        try:
            for group in groups:
                pieces = self._pieces(group.tolist())
                self.folder.will_need(pieces)
                waiting.append((group, pieces))
                if len(waiting) > self.folder.groups_ahead:
                    yield waiting.popleft()[0]
            while waiting:
                yield waiting.popleft()[0]
        finally:  # the caller may have stopped early, or Python itself ends
            for _, pieces in waiting:
                self.folder.forget(pieces)

    def in_order(self, group: int) -> Iterator[Sample]:
        """Read all samples in file order, so many at a time."""
        starts = range(0, len(self.numbers), group)
        for numbers in self.ahead(self.numbers[start : start + group] for start in starts):
            yield from self.samples(numbers.tolist())

    def samples(self, numbers: Sequence[int]) -> Iterator[Sample]:
        """Read samples and check that they are the right ones; arrays map the shard.

        Those of ``halves`` hold the bits of bfloat16.
        """
        pieces = self._pieces(numbers)
        views = self.folder.views(pieces)
        width = len(self.fields)
        for start, number in zip(range(0, len(views), width), numbers, strict=True):
            members = views[start : start + width]
            sample: Sample = {"__key__": self._key(number, pieces[start], members)}
            for field, member in zip(self.fields, members, strict=True):
                try:
                    sample[field] = decode.value(member, field)
                except BadMemberError as error:
                    what = f"{sample['__key__']}.{field} is damaged ({error})"
                    path = f"{self.folder.name}/{pieces[start].whole.path}"
                    raise DamageError(what, path=path, fix=COPY) from None
            yield sample

    def _key(self, number: int, place: Piece, members: list[memoryview]) -> str:
        """Read the key of a sample; raise if its tar headers are not those of the index."""
        if self.catalog.keys is not None:  # the headers themselves were scanned
            return self.catalog.keys[number]
        names = [bytes(member[:LONGEST_NAME]).rstrip(b"\0").lower() for member in members]
        key = bytes(members[0][: len(names[0]) - len(self._suffixes[0])])
        expected = [key.lower() + suffix for suffix in self._suffixes]
        if names != expected or xxhash.xxh3_64_intdigest(key) != self.catalog.marks.item(number):
            raise DamageError(
                f"differs from its index at byte {place.offset}: damaged, or of another packing",
                path=f"{self.folder.name}/{place.whole.path}",
                fix=f"copy the shards and their {STATE_FOLDER} here again together, or "
                f"{self.catalog.again(self.folder)} (shardwright verify lists all damaged "
                "shards)",
            )
        return key.decode(errors="backslashreplace")

    def _pieces(self, numbers: Sequence[int]) -> list[Piece]:
        places = self.catalog.places[numbers][:, self._columns].tolist()
        return [
            Piece(shard, offset - BLOCK, size + BLOCK)
            for shard, sample in zip(map(self.catalog.shard_of, numbers), places, strict=True)
            for offset, size in sample
        ]
