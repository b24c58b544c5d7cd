"""Columns of the records: one field of the JSON member of every sample."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from shardwright.errors import UsageError
from shardwright.recipes import JSON_SUFFIX
from shardwright.shards.reader.view import View

_GROUP = 256  # records requested together


@dataclass
class RecordColumn:
    """A value for each sample; equal values are kept once, because a million may share ten."""

    codes: array[int] = field(default_factory=lambda: array("q"))  # by sample
    values: list[Any] = field(default_factory=list)  # by code
    known: dict[Hashable, int] = field(default_factory=dict)  # the code of each value

    def append(self, value: object) -> None:
        """Add the value of the next sample."""
        code = self.known.setdefault(_key(value), len(self.values))
        if code == len(self.values):
            self.values.append(value)
        self.codes.append(code)

    def code(self, value: object) -> int | None:
        """Find the code of a value, None if no sample has it."""
        return self.known.get(_key(value))

    def to_list(self) -> list[Any]:
        """Give the value of each sample."""
        return [self.values[code] for code in self.codes]


def read_columns(view: View, names: Sequence[str]) -> dict[str, RecordColumn]:
    """Read columns of all samples in one pass; None stands for a missing value."""
    if JSON_SUFFIX not in view.catalog.members:
        raise UsageError("samples have no JSON member", path=view.folder.name)
    columns = {name: RecordColumn() for name in names}
    there: set[str] = set()
    for sample in view.narrowed(JSON_SUFFIX).in_order(_GROUP):
        record = sample[JSON_SUFFIX]
        there.update(record)
        for name, column in columns.items():
            column.append(record.get(name))
    for name in names:
        if name not in there:
            what, fix = f"column {name}: no sample has it", f"there are {', '.join(sorted(there))}"
            raise UsageError(what, path=view.folder.name, fix=fix)
    return columns


def _key(value: object) -> Hashable:
    # In JSON 1 and 1.0 are one number, but true is none; Python takes all three for equal.
    if isinstance(value, list | dict):
        return msgspec.json.encode(value)
    return isinstance(value, bool | np.bool_), value
