"""The journal: new and updated records of a run, beside the JSONL until the run ends.

Records are appended to ``<jsonl>.tmp`` and merged into the JSONL at the end of the run, or, if the
run was killed, at the start of the next. The JSONL itself changes in one step, by the merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import msgspec

from shardwright.interrupts import undisturbed
from shardwright.storage import files
from shardwright.store import records
from shardwright.store.records import Line, Record
from shardwright.store.rewrite import Rewrite, unfinished


class _Identity(msgspec.Struct, gc=False):
    """All that a merge needs to know of a record."""

    image_id: str


_identify = msgspec.json.Decoder(_Identity).decode


@dataclass(frozen=True)
class Recovered:
    """What a run that was killed left behind, and this one has merged."""

    records: int
    torn_lines: int  # that were not written to their end, and are dropped


def journal_path(jsonl: Path) -> Path:
    """Name the journal of a JSONL."""
    return jsonl.with_name(jsonl.name + files.TMP_SUFFIX)


class Journal:
    """Collects the records of a run; however the block is left, they are merged.

    ``append`` queues a record, ``commit`` makes what is queued durable: call it when the records'
    arrays are on the disk, and for many records at once. The caller holds the store's lock.
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
            # After a failed write nobody knows what the disk holds: the next run reads and judges.
            if not self._failed:
                self.commit()
                if journal_path(self.jsonl).exists():
                    with undisturbed():
                        merge(self.jsonl)
        finally:
            if self._file is not None:
                self._file.close()

    def append(self, record: Record) -> None:
        """Queue a record, to be added to the JSONL or to take its old place there."""
        self._queued.append(records.line(record) + b"\n")

    def commit(self) -> None:
        """Make the queued records durable."""
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
    """Bring the journal's records into the JSONL and remove the journal.

    An updated record takes its old place, new ones go to the end. Of both files only ids and
    offsets are held in memory.
    """
    path = journal_path(jsonl)
    with files.explained(path), path.open("rb") as journal:
        offsets, torn_lines = _index(journal)
        if offsets:
            with Rewrite(jsonl) as rewrite:
                _apply(journal, offsets, rewrite)
                rewrite.publish()
    files.withdraw(path)
    return Recovered(len(offsets), torn_lines)


def _index(journal: IO[bytes]) -> tuple[dict[str, int], int]:
    """Find where the latest record of each id begins; count the lines that are no records."""
    offsets: dict[str, int] = {}
    torn_lines = 0
    size = files.state(journal.fileno())[0]
    for line in records.lines(journal):
        image_id = _image_id(line)
        whole = line.data is not None and line.offset + len(line.data) < size
        if image_id is None or not whole:
            torn_lines += 1
        else:
            offsets[image_id] = line.offset
    return offsets, torn_lines


def _apply(journal: IO[bytes], offsets: dict[str, int], rewrite: Rewrite) -> None:
    """Put each record of the journal in its place."""

    def record(image_id: str) -> bytes:
        journal.seek(offsets[image_id])
        return journal.readline().rstrip(b"\n")

    placed: set[str] = set()
    for line in rewrite.lines():
        image_id = _image_id(line)
        if image_id in offsets:
            rewrite.replace(line, record(image_id))
            placed.add(image_id)
    for image_id in offsets:
        if image_id not in placed:
            rewrite.add(record(image_id))


def _image_id(line: Line) -> str | None:
    """Read the id of a record; None if the line has none that can be one."""
    if line.data is None:
        return None
    try:
        image_id = _identify(line.data).image_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if records.image_id_problem(image_id) else image_id
