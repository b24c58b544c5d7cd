"""The first step of packing: read the metadata, list the arrays, and say which records are ready.

Only a small fixed cost per record is kept (where its line is, its id, its bucket), never the parsed
record: a million records take a few hundred megabytes.
"""

from __future__ import annotations

import os
import posixpath
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shardwright import files, schema
from shardwright.errors import InputMissingError, ProvenanceError, SourceChangedError
from shardwright.files import explained
from shardwright.pack.summary import Skipped
from shardwright.progress import Progress
from shardwright.store import provenance, records
from shardwright.store.journal import require_merged
from shardwright.store.listing import ARRAY_SUFFIX
from shardwright.store.records import BadRecordError, Line, Record

WARNINGS_SHOWN = 5


@dataclass
class Scan:
    """The ready samples of a store, in columns; a sample is its position in them."""

    jsonl: Path
    derived_dir: Path
    jsonl_state: tuple[int, int]  # its size and time, to notice a change before we copy
    total_records: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    ids: list[str] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    dropped: set[int] = field(default_factory=set)  # samples that proved not to be ready after all

    def add(self, image_id: str, bucket: str, line: Line) -> None:
        """Append a sample."""
        assert line.data is not None
        self.ids.append(image_id)
        self.buckets.append(sys.intern(bucket))
        self.offsets.append(line.offset)
        self.lengths.append(len(line.data))

    def drop(self, sample: int, reason: str) -> None:
        """Move a sample from the ready to the skipped."""
        self.dropped.add(sample)
        self.skipped.add(reason, self.ids[sample])

    def at(self, offset: int) -> int | None:
        """Find the ready sample whose line begins at an offset."""
        sample = bisect_left(self.offsets, offset)
        there = sample < len(self.offsets) and self.offsets[sample] == offset
        return sample if there and sample not in self.dropped else None

    def ready(self) -> Iterator[int]:
        """Give the ready samples in the order of the JSONL."""
        return (sample for sample in range(len(self.ids)) if sample not in self.dropped)

    @property
    def ready_records(self) -> int:
        """Count the records that are ready."""
        return len(self.ids) - len(self.dropped)

    def counts(self) -> str:
        """Say how the books stand."""
        return (
            f"total_records={self.total_records} ready_records={self.ready_records} "
            f"skipped_incomplete={self.skipped.total}"
        )


def scan(jsonl: Path, derived_dir: Path, progress: Progress, progress_every: int) -> Scan:
    """Find the samples whose record is complete and whose array files are all there."""
    complete = _complete(derived_dir)
    seen: dict[str, int] = {}  # where the latest record of each id is
    conflicts: set[str] = set()  # ids that stand for more than one image
    with (
        explained(jsonl),
        jsonl.open("rb", buffering=1 << 20) as file,
        jsonl.open("rb") as again,
    ):
        found = Scan(jsonl, derived_dir, files.state(file.fileno()))
        size, _ = found.jsonl_state
        progress.phase("scan", size, "B")
        malformed = 0
        for line in records.counted(records.lines(file), size, progress):
            found.total_records += 1
            try:
                image_id, bucket, reason = _look(line.data)
            except BadRecordError as error:
                found.skipped.add(error.reason, f"line {line.number}")
                malformed += 1
                if malformed <= WARNINGS_SHOWN:
                    what = error.reason.replace("_", " ")
                    progress.warn(f"{jsonl}, line {line.number}: {what}; skipped")
                continue
            if image_id is None:
                assert reason is not None
                found.skipped.add(reason, f"line {line.number}")
                continue
            try:
                complete.remove(image_id + ARRAY_SUFFIX)  # as ids come, names go: memory stays low
            except KeyError:  # not complete, or met before
                reason = reason or _missing(image_id, derived_dir)
            earlier = seen.setdefault(image_id, line.offset)
            if earlier != line.offset:
                seen[image_id] = line.offset
                reason = _settle(found, earlier, line.offset, again, conflicts) or reason
            if reason is not None:
                found.skipped.add(reason, image_id)
                continue
            found.add(image_id, bucket, line)
            if len(found.ids) % progress_every == 0:
                progress.note(found.counts())
    if malformed > WARNINGS_SHOWN:
        progress.warn(f"{jsonl}: {malformed - WARNINGS_SHOWN} more malformed lines, also skipped")
    progress.note(found.counts())
    return found


def _complete(derived_dir: Path) -> set[str]:
    """List each component's folder once, and give the names that are in all of them."""
    complete: set[str] | None = None
    for component in schema.COMPONENTS:
        folder = derived_dir / component.folder
        with explained(folder):
            names = os.listdir(folder) if folder.is_dir() else []
        if complete is None:
            complete = set(names)
        else:
            complete.intersection_update(names)
    return complete or set()


def _look(line: bytes | None) -> tuple[str | None, str, str | None]:
    """Give a line's image_id, its bucket, and why it is not ready; whether it has arrays aside."""
    if (found := records.essentials(line)) is not None:
        return found.image_id, found.aspect_bucket, None
    record = records.parse(line)
    image_id = record.get("image_id")
    if reason := records.image_id_problem(image_id):
        return None, "", reason
    return image_id, record.get("aspect_bucket", ""), records.problem(record)


def _missing(image_id: str, derived_dir: Path) -> str | None:
    for component in schema.COMPONENTS:
        if not os.path.lexists(derived_dir / component.folder / (image_id + ARRAY_SUFFIX)):
            return f"{component.name}_missing"
    return None


def _settle(
    found: Scan, earlier: int, later: int, file: BinaryIO, conflicts: set[str]
) -> str | None:
    """Settle two records of one image_id: for one image the later wins, for two neither does."""
    old, new = (_record_at(offset, file, found.jsonl) for offset in (earlier, later))
    image_id = new["image_id"]
    if image_id in conflicts or _image(old) != _image(new):
        conflicts.add(image_id)
    reason = "duplicate_id" if image_id in conflicts else None
    sample = found.at(earlier)
    if sample is not None:
        found.drop(sample, reason or "superseded")
    return reason


def _record_at(offset: int, file: BinaryIO, jsonl: Path) -> Record:
    file.seek(offset)
    try:
        return records.parse(file.readline().rstrip(b"\r\n"))
    except BadRecordError:
        raise SourceChangedError(f"{jsonl}: changed while it was read; run again") from None


def _image(record: Record) -> object:
    path = record.get("image_path")
    return posixpath.normpath(path) if isinstance(path, str) else path


def require_inputs(jsonl: Path, derived_dir: Path) -> None:
    """Raise if a part of the store is not there at all, or is being made anew."""
    require_merged(jsonl)
    if not jsonl.is_file():
        raise InputMissingError(
            f"{jsonl}: no such file; give the Stage 2 metadata with --jsonl, or its folder with "
            "--derived-dir"
        )
    for component in schema.COMPONENTS:
        folder = derived_dir / component.folder
        if not folder.is_dir():
            raise InputMissingError(
                f"{folder}: no such folder; {component.name} arrays are looked for there, below "
                "--derived-dir"
            )
    if names := provenance.under_way(derived_dir):
        raise ProvenanceError(
            f"{derived_dir}: a run that makes {' and '.join(names)} anew has not ended, so its "
            "arrays may not be those of their records; run that derive again (shardwright status "
            "says how), then pack"
        )
