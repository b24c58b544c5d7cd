"""A store to look at."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright import regular
from shardwright.comparing.vectors import even
from shardwright.errors import InputMissingError, SourceChangedError
from shardwright.interrupts import check
from shardwright.looking.sources import BucketCount, Member, Source, by_size
from shardwright.looking.table import Builder, Table
from shardwright.packing.scan import Scan, require_inputs, scan
from shardwright.progress import Progress
from shardwright.recipes import Component
from shardwright.reporting.rows import FAILED, READY, Rows
from shardwright.reporting.store_status import not_ready
from shardwright.storage.files import explained
from shardwright.store import arrays, npy, provenance, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import Record
from shardwright.store.store import Store

_CHUNK = 4096  # rows at a time
_MEASURED = 200  # samples of a bucket whose files are measured
_BLOCK = 256  # vectors at a time
_NOTE_EVERY = 100_000  # ready records between two lines of a log
_NO_LINE = -1
_OF_FAILED = ("image_id", "image_path", "reason", "detail")


class StoreSource(Source):
    """The images on record in a store, ready or not, and those that failed."""

    kind = "store"

    def __init__(self, store: Store, progress: Progress) -> None:
        entries = provenance.readable(store.folder)
        settings = {name: entry.settings for name, entry in entries.items()}
        super().__init__(str(store.folder), store.recipe, settings)
        self.store = store
        require_inputs(store)
        if store.journal.exists():
            self.notes.append("records of a running or interrupted derive are not shown yet")
        found = scan(store, progress, _NOTE_EVERY)
        ready = {found.ids[sample] for sample in found.ready()}
        others = not_ready(store, ready)[0] if found.skipped else {}
        self._rows = Rows(found, {}, ready, others.keys())
        self._lines = array("q")  # where each record is
        self._unrecorded: dict[int, dict[str, Any]] = {}  # what is known of images without one
        self.table = self._read(found, progress)
        if not len(self.table):
            fix = "derive images first, or give another path"
            raise InputMissingError("has no records", path=store.folder, fix=fix)
        self.buckets = list(self._measure())
        self.bytes_estimated = any(bucket.samples > _MEASURED for bucket in self.buckets)

    def _read(self, found: Scan, progress: Progress) -> Table:
        builder = Builder()
        progress.phase("read", len(self._rows), "records")
        rows = self._rows.with_lines()
        while some := list(islice(rows, _CHUNK)):
            check()
            for line, row in some:
                if line is None:
                    self._unrecorded[len(self._lines)] = row
                self._lines.append(_NO_LINE if line is None else line)
            builder.add([_named(row) for _, row in some])
            progress.advance(len(some))
        self._rows.require_unchanged()
        return builder.table()

    def _measure(self) -> Iterator[BucketCount]:
        """Count the samples of each bucket, and their bytes by some of them."""
        table = self.table
        ready = table.states.having(READY)
        for name in sorted(table.buckets.counts(), key=by_size):
            numbers = np.flatnonzero(table.buckets.having(name) & ready)
            if len(numbers):
                some = numbers[even(len(numbers), _MEASURED)]
                measured = sum(self._bytes(table.ids[number]) for number in some)
                total = round(measured * len(numbers) / len(some))
                yield BucketCount(name, None, len(numbers), total, None)

    def _bytes(self, image_id: str) -> int:
        total = 0
        for component in self.recipe.components:
            with explained(path := self.store.array(component, image_id)):
                total += os.stat(path).st_size
        return total

    def record(self, number: int) -> Record:
        line, image_id = self._lines[number], self.table.ids[number]
        if line == _NO_LINE:
            known = self._unrecorded[number]
            return {name: known[name] for name in _OF_FAILED if known.get(name) is not None}
        path = self.store.jsonl
        with explained(path), regular.opened(path) as file:
            file.seek(line)
            try:
                record = records.parse(file.readline(records.LONGEST_LINE).rstrip(b"\r\n"))
            except records.BadRecordError:
                record = {}
        named = record.get("image_id")
        if (named if isinstance(named, str) else "") != image_id:
            fix = "stop shardwright look and start it again"
            raise SourceChangedError("changed since it was opened", path=path, fix=fix)
        return record

    def image_paths(self, number: int) -> list[str]:
        known = self._rows.facts_of(self.table.ids[number])
        paths = [known.image.path] if known and known.image else []
        return paths + super().image_paths(number)

    def place(self, number: int) -> str:
        if self._lines[number] == _NO_LINE:
            return "not in the metadata"
        return f"{self.store.jsonl}, byte {self._lines[number]:,}"

    def members(self, number: int) -> list[str]:
        return list(self.recipe.suffixes[1:])

    def member(self, number: int, name: str) -> Member:
        component = self.recipe.arrays[name]
        for mask in self.recipe.masks:
            if mask.suffix == name:
                return _mask(name, self.record(number).get(mask.field), mask.field)
        image_id = self.table.ids[number]
        if not records.is_image_id(image_id):  # it must not lead out of the store
            return Member(name, component, None, 0, "", fault="no valid image_id")
        path = self.store.array(component, image_id)
        try:
            value: Any
            if component.is_array:
                value = arrays.values(arrays.read_array(path, component), component)
            else:
                with open(npy.open_array(path), "rb") as file:
                    value = file.read()
            return Member(name, component, value, path.stat().st_size, str(path))
        except BadArrayError as error:
            fault = error.reason.replace("_", " ")
        except OSError as error:
            fault = str(error.strerror)
        return Member(name, component, None, 0, str(path), fault=fault)

    def vectors(self, component: Component) -> Iterator[NDArray[Any]]:
        width, total = component.shape_for(0, 0)[0], len(self.table)
        for start in range(0, total, _BLOCK):
            block = np.full((min(_BLOCK, total - start), width), np.nan, np.float32)
            for row, image_id in enumerate(self.table.ids[start : start + _BLOCK]):
                if records.is_image_id(image_id):
                    path = self.store.array(component, image_id)
                    with suppress(BadArrayError, ValueError):  # missing, or of another width
                        block[row] = arrays.values(arrays.read_array(path, component), component)
            yield block


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Name a failed image by the reason."""
    return {**row, "state": row["reason"]} if row["state"] == FAILED else row


def _mask(name: str, mask: object, place: str) -> Member:
    """Give the mask in a record as the member that it is in a shard."""
    if mask is None:
        return Member(name, None, None, 0, place, fault="missing")
    try:
        value = np.array(mask, np.uint8)
    except (TypeError, ValueError, OverflowError):
        return Member(name, None, None, 0, place, fault="invalid mask")
    return Member(name, None, value, value.nbytes, place)
