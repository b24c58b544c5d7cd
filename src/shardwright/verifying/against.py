"""Holding shards against the store they were packed from, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shardwright.errors import InputMissingError
from shardwright.progress import Progress
from shardwright.recipe import JSON_SUFFIX
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.store import npy, records
from shardwright.store.findings import Fault
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError
from shardwright.store.store import Store
from shardwright.verifying.sample import Place

_CHUNK = 1 << 20  # bytes compared at a time


@dataclass(frozen=True)
class Source:
    """A store, and where in its JSONL the record of each image_id is."""

    store: Store
    lines: Mapping[str, int]  # the offsets of the records; the latest where one id has several

    def open_jsonl(self) -> IO[bytes]:
        """Open the metadata for ``faults``."""
        return self.store.jsonl.open("rb")

    def faults(
        self, image_id: str, places: Mapping[str, Place], jsonl: IO[bytes]
    ) -> Iterator[Fault]:
        """Find what is not in a shard as it is in the store."""
        if image_id not in self.lines:
            yield Fault("record_gone", f"has no record in {self.store.jsonl}")
            return
        jsonl.seek(self.lines[image_id])
        line = jsonl.readline(records.LONGEST_LINE).rstrip(b"\r\n")
        with suppress(BadRecordError):  # it was sound a moment ago; if not now, nothing equals it
            record = records.parse(line)
            recipe = self.store.recipe
            made: dict[str, bytes | None] = {JSON_SUFFIX: json_member(record, recipe)}
            for mask in recipe.masks:
                sound = records.is_mask(record.get(mask.field), mask)
                made[mask.suffix] = mask_member(record, mask) if sound else None
            for suffix, data in made.items():
                place = places.get(suffix)
                if place and data != place.first(place.size):
                    what = f"differs from the record in {self.store.jsonl}"
                    yield Fault("record_differs", what, suffix)
        for component in self.store.recipe.components:
            path = self.store.array(component, image_id)
            place = places.get(component.suffix)
            if place and not _equal(place, path):
                what = f"differs from {path}" if path.exists() else f"its source {path} is gone"
                yield Fault("source_differs", what, component.suffix)


def read_source(store: Store, progress: Progress) -> Source:
    """Find the record of every id in a store."""
    jsonl = store.jsonl
    if not jsonl.is_file():
        raise InputMissingError(f"{jsonl}: no such file; give the folder of a store to --against")
    lines: dict[str, int] = {}
    # What is no record, pack skips, so no shard can hold it.
    for line, record in records.walk(jsonl, records.parse, progress=progress):
        if records.is_image_id(image_id := record.get("image_id")):
            lines[image_id] = line.offset
    return Source(store, lines)


def _equal(place: Place, path: Path) -> bool:
    """Whether a member holds exactly the bytes of a file."""
    try:
        source = npy.open_array(path)
    except BadArrayError:
        return False
    try:
        if os.fstat(source).st_size != place.size:
            return False
        return all(
            os.pread(source, _CHUNK, at)
            == place.file.pread(place.offset + at, min(_CHUNK, place.size - at))
            for at in range(0, place.size, _CHUNK)
        )
    finally:
        os.close(source)
