"""The journal: new and updated records, in ``<jsonl>.tmp`` until the run ends.

They are merged into the JSONL in one step at the end of the run or, if it was killed, at the start
of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from shardwright import regular
from shardwright.interrupts import undisturbed
from shardwright.storage import files
from shardwright.storage.steps import Steps
from shardwright.store import records
from shardwright.store.records import BadRecordError, Line, Record
from shardwright.store.rewrite import Rewrite, unfinished

Combine = Callable[[bytes | None, bytes], bytes | None]


@dataclass(frozen=True)
class Recovered:
    """What this run merged from the journal of a run that was killed."""

    records: int
    torn_lines: int  # incomplete, and dropped


def journal_path(jsonl: Path) -> Path:
    """Name the journal of a JSONL."""
    return jsonl.with_name(jsonl.name + files.TMP_SUFFIX)


class Journal:
    """Collects the records of a run, and merges them however the block ends.

    ``append`` queues a record; ``commit`` writes the queue to the disk: call it for many records at
    once, after their arrays are on the disk. The caller holds the store's lock.
    """

    def __init__(self, jsonl: Path) -> None:
        self.jsonl = jsonl
        self.recovered: Recovered | None = None
        self._queued: list[bytes] = []
        self._file: files.AppendFile | None = None
        self._failed = False

    def __enter__(self) -> Self:
        self.recovered = recover(self.jsonl)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # After a failed write the state of the disk is unknown: the next run reads it.
            if not self._failed:
                self.commit()
                if journal_path(self.jsonl).exists():
                    with undisturbed():
                        merge(self.jsonl)
        finally:
            if self._file is not None:
                self._file.close()

    def append(self, record: Record) -> None:
        """Queue a record, which is added to the JSONL or replaces the one of its id."""
        self._queued.append(records.line(record) + b"\n")

    def commit(self) -> None:
        """Write the queued records to the disk."""
        if not self._queued:
            return
        try:
            if self._file is None:
                self._file = files.AppendFile(journal_path(self.jsonl))
            self._file.commit(b"".join(self._queued))
        except BaseException:
            self._failed = True
            raise
        self._queued.clear()


def recover(jsonl: Path) -> Recovered | None:
    """Merge and remove the journal of a run that was killed, if there is one."""
    files.remove(unfinished(jsonl))
    return merge(jsonl) if journal_path(jsonl).exists() else None


def merge(jsonl: Path) -> Recovered:
    """Merge the journal into the JSONL, and remove it."""
    path = journal_path(jsonl)
    recovered = apply(path, jsonl)
    files.withdraw(path)
    return recovered


def apply(
    path: Path,
    jsonl: Path,
    ids: Container[str] | None = None,
    combine: Combine = lambda _, record: record,
    steps: Steps | None = None,
) -> Recovered:
    """Merge the records of another file into a JSONL: all, or those with the given ids.

    ``combine`` gets the old line (None if there is none) and the new one. Its result replaces the
    old line, or is added at the end; None changes nothing. Only ids and offsets are held in memory.
    With ``steps`` the JSONL changes together with what else they change.
    """
    if not path.is_file():
        return Recovered(0, 0)
    with files.explained(path), regular.opened(path) as journal:
        offsets, torn_lines = _index(journal)
        offsets = {i: offset for i, offset in offsets.items() if ids is None or i in ids}
        if offsets:
            with Rewrite(jsonl) as rewrite:
                _apply(journal, offsets, rewrite, combine)
                if rewrite.changed:
                    rewrite.publish(steps)
    return Recovered(len(offsets), torn_lines)


def _index(journal: IO[bytes]) -> tuple[dict[str, int], int]:
    """Find the last record of each id; count the lines that are not records."""
    offsets: dict[str, int] = {}
    torn_lines = 0
    size = files.state(journal.fileno())[0]
    for line in records.lines(journal):
        image_id = _image_id(line)
        # Without its line end, the last line may be cut off.
        if image_id is None or line.offset + len(line.data or b"") == size:
            torn_lines += 1
        else:
            offsets[image_id] = line.offset
    return offsets, torn_lines


def _apply(journal: IO[bytes], offsets: dict[str, int], rewrite: Rewrite, combine: Combine) -> None:
    """Put each record of the journal in its place."""

    def record(image_id: str, old: bytes | None = None) -> bytes | None:
        journal.seek(offsets[image_id])
        return combine(old, journal.readline().rstrip(b"\n"))

    placed: set[str] = set()
    for line in rewrite.lines():
        image_id = _image_id(line)
        if image_id in offsets:
            placed.add(image_id)
            if (new := record(image_id, line.data)) is not None:
                rewrite.replace(line.offset, line.offset + len(line.data or b""), new)
    for image_id in offsets:
        if image_id not in placed and (new := record(image_id)) is not None:
            rewrite.add(new)


def _image_id(line: Line) -> str | None:
    """Read the id of a record; None if it is missing or invalid."""
    with suppress(BadRecordError):
        image_id = records.names(line.data).image_id
        if records.is_image_id(image_id):
            return image_id
    return None
