"""All samples in columns, and the questions that a viewer asks: which ones, and in which order.

A million samples take a few hundred megabytes: ids as text, captions as one piece of bytes in lower
case, everything else as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.comparing.copies import Hashes, hashes_of
from shardwright.reporting.rows import CUT_AT, READY
from shardwright.store.facts import (
    CROPPED,
    ENLARGED,
    IDENTICAL,
    LOST,
    MUCH_CROPPED,
    MUCH_ENLARGED,
    TRUNCATED,
)

Row = Mapping[str, Any]
Numbers = NDArray[np.int64]  # of samples
Chosen = NDArray[np.bool_]

IMAGE_HASH = "image_xxh3"  # the column with the hash of an image's file
_NAMES = ("image_id", "caption", "aspect_bucket", "part", "state")  # columns that are texts
_HIDDEN = (CUT_AT, "crop_", "decoded_", "format_version")  # nobody sorts by these
_MOST_COLUMNS = 64  # of numbers: the records may be anybody's
_LARGEST = 1e15  # of them: larger ones, and infinity, would spoil every chart
_MOST_ORDERS = 8  # of samples, that are kept
_NOTHING: Mapping[str, list[Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Query:
    """Which samples to show, and in which order; empty means all, as they are stored."""

    bucket: str = ""
    part: str = ""
    state: str = ""
    flag: str = ""
    text: str = ""  # words that the caption must have
    id: str = ""  # a part of the id
    other: str = ""  # how it compares with the other path: both, missing or caption
    sort: str = ""
    order: str = "asc"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Read a query from the parameters of a request; others are ignored."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})


class Texts:
    """Texts to search in, as one piece of bytes; case does not count."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(parts), np.uint8)
        self._ends = np.flatnonzero(self._bytes == ord("\n"))

    @staticmethod
    def part(texts: Iterable[str]) -> bytes:
        """Join texts, a line each."""
        joined = "\n".join(text.replace("\n", " ") for text in texts)
        return f"{joined}\n".lower().encode(errors="replace")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        start = self._ends[number - 1] + 1 if number else 0
        return self._bytes[start : self._ends[number]].tobytes()

    def having(self, word: str) -> Chosen:
        """Mark the texts that have a word, or a part of one."""
        chosen = np.zeros(len(self), np.bool_)
        wanted = word.lower().replace("\n", " ").encode(errors="replace")
        places = np.flatnonzero(self._bytes[: len(self._bytes) - len(wanted)] == wanted[0])
        for step, byte in enumerate(wanted[1:], 1):
            places = places[self._bytes[places + step] == byte]
        chosen[np.searchsorted(self._ends, places)] = True
        return chosen


class Names:
    """A column of few different texts."""

    def __init__(self, codes: Sequence[NDArray[np.int32]], names: Sequence[str]) -> None:
        self.codes = np.concatenate(codes) if codes else np.zeros(0, np.int32)
        self.names = list(names)

    def __getitem__(self, number: int) -> str | None:
        return self.names[self.codes[number]] or None

    def counts(self) -> dict[str, int]:
        """Count the samples of each name."""
        counted = np.bincount(self.codes, minlength=len(self.names)).tolist()
        return {n: count for n, count in zip(self.names, counted, strict=True) if n and count}

    def having(self, name: str) -> Chosen:
        """Mark the samples of a name."""
        marked: Chosen = self.codes == (self.names.index(name) if name in self.names else -1)
        return marked


class Builder:
    """Makes a table from rows, some at a time."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._captions: list[bytes] = []
        self._id_texts: list[bytes] = []
        self._codes: dict[str, list[NDArray[np.int32]]] = {name: [] for name in _NAMES[2:]}
        self._names: dict[str, dict[str, int]] = {name: {} for name in _NAMES[2:]}
        self._numbers: dict[str, list[tuple[int, NDArray[np.float64]]]] = {}
        self._hashes: list[Hashes] = []

    def add(self, rows: Sequence[Row], more: Mapping[str, list[Any]] = _NOTHING) -> None:
        """Add rows: fields of a record and facts, by name; ``more`` are columns instead of theirs.

        Columns are quicker than fields of each row.
        """
        first = len(self.ids)

        def column(name: str) -> list[Any]:
            found = more.get(name)
            return [row.get(name) for row in rows] if found is None else found

        ids, captions, *names = (_texts(column(name)) for name in _NAMES)
        self.ids += ids
        self._id_texts.append(Texts.part(ids))
        self._captions.append(Texts.part(captions))
        for texts, (name, known) in zip(names, self._names.items(), strict=True):
            for text in dict.fromkeys(texts):
                known.setdefault(text, len(known))
            coded = map(known.__getitem__, texts)
            self._codes[name].append(np.fromiter(coded, np.int32, len(rows)))
        files = (text if isinstance(text, str) else None for text in column(IMAGE_HASH))
        self._hashes.append(hashes_of(files))
        # Most rows have the same fields in the same order.
        fields = dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, rows))))
        for name in fields | dict.fromkeys(more):
            is_known = name in self._numbers
            if name in _NAMES or not (is_known or len(self._numbers) < _MOST_COLUMNS):
                continue
            if (numbers := _numbers(column(name))) is not None:
                self._numbers.setdefault(name, []).append((first, numbers))

    def table(self) -> Table:
        """Give the table of all rows."""
        numbers = {}
        for name, pieces in self._numbers.items():
            column = numbers[name] = np.full(len(self.ids), np.nan)
            for first, part in pieces:
                column[first : first + len(part)] = part
        numbers = {name: column for name, column in numbers.items() if not np.isnan(column).all()}
        buckets, parts, states = (
            Names(codes, list(self._names[name])) for name, codes in self._codes.items()
        )
        texts = Texts(self._id_texts), Texts(self._captions)
        hashes = np.concatenate([np.zeros(0, np.uint64), *self._hashes])
        hashes[~states.having(READY)] = 0  # none of them is the one that is kept
        return Table(self.ids, *texts, buckets, parts, states, numbers, hashes)


def _texts(values: list[Any]) -> list[str]:
    """Give values as texts; what is none is empty."""
    if set(map(type, values)) == {str}:
        return values
    return [value if isinstance(value, str) else "" for value in values]


def _numbers(values: list[Any]) -> NDArray[np.float64] | None:
    """Give values as numbers, NaN for what is not one; None if there is no number."""
    kinds = set(map(type, values))
    if kinds.isdisjoint((int, float)):
        return None
    if not kinds <= {int, float, NoneType}:
        values = [value if type(value) in (int, float) else None for value in values]
    try:
        found = np.array(values, np.float64)
    except OverflowError:
        return _numbers([None if abs(value or 0) > _LARGEST else value for value in values])
    found[~(np.abs(found) < _LARGEST)] = np.nan
    return found


@dataclass
class Table:
    """All samples, by their numbers."""

    ids: list[str]
    id_texts: Texts
    captions: Texts
    buckets: Names
    parts: Names
    states: Names
    numbers: dict[str, NDArray[np.float64]]  # by column; NaN where it is not known
    hashes: Hashes  # of the files of images that are ready
    flags: dict[str, Chosen] = field(default_factory=dict)
    compared: dict[str, Chosen] = field(default_factory=dict)  # by how they compare with others

    def __post_init__(self) -> None:
        """Mark what follows from the numbers."""
        self._found = lru_cache(_MOST_ORDERS)(self._select)
        lost = [column > 0 for name, column in self.numbers.items() if name.startswith(LOST)]
        if lost:
            self.flags[TRUNCATED] = np.logical_or.reduce(lost)
        for flag, limit in ((ENLARGED, MUCH_ENLARGED), (CROPPED, MUCH_CROPPED)):
            if flag in self.numbers:
                self.flags[flag] = self.numbers[flag] > limit
        _, which, counts = np.unique(self.hashes, return_inverse=True, return_counts=True)
        identical = (self.hashes != 0) & (counts > 1)[which]
        if identical.any():
            self.flags[IDENTICAL] = identical

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> list[str]:
        """Name the numbers to sort by."""
        return [name for name in self.numbers if not name.startswith(_HIDDEN)]

    @property
    def ready(self) -> Numbers:
        """Give the samples that have all their arrays."""
        return np.flatnonzero(self.states.having(READY))

    def flags_of(self, number: int) -> list[str]:
        """Name the flags of a sample."""
        return [flag for flag, marked in self.flags.items() if marked[number]]

    def put(self, name: str, column: NDArray[np.float64], flags: Mapping[str, Chosen]) -> None:
        """Add a column, and flags that follow from it."""
        # Others read them meanwhile, so they are replaced and not changed.
        self.numbers = {**self.numbers, name: column}
        self.flags = {**self.flags, **flags}
        self._found = lru_cache(_MOST_ORDERS)(self._select)

    def select(self, query: Query) -> Numbers:
        """Find samples, in order."""
        return self._found(query)

    def _select(self, query: Query) -> Numbers:
        chosen = np.ones(len(self), np.bool_)
        for column, name in (
            (self.buckets, query.bucket),
            (self.parts, query.part),
            (self.states, query.state),
        ):
            if name:
                chosen &= column.having(name)
        for marks, name in ((self.flags, query.flag), (self.compared, query.other)):
            if name:
                chosen &= marks.get(name, np.zeros(len(self), np.bool_))
        for word in query.text.split():
            chosen &= self.captions.having(word)
        if query.id:
            chosen &= self.id_texts.having(query.id)
        found: Numbers = np.flatnonzero(chosen)
        if query.sort not in self.numbers:
            return found[::-1] if query.sort == "" and query.order == "desc" else found
        values = self.numbers[query.sort][found]
        order = np.argsort(-values if query.order == "desc" else values, kind="stable")
        return found[order]  # NaN is last in both orders
