"""The journal: new and updated records, in ``<jsonl>.tmp`` until the run ends.

They are merged into the JSONL in one step at the end of the run or, if it was killed, at the start
of the next. A new version of a JSONL has some lines replaced, dropped or added, and every other
byte unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from shardwright import regular
from shardwright.errors import SourceChangedError
from shardwright.interrupts import check, undisturbed
from shardwright.storage import files
from shardwright.storage.steps import Steps
from shardwright.storage.urls import resolved
from shardwright.store import records
from shardwright.store.records import BadRecordError, Line, Record

_SUFFIX = ".merge" + files.TMP_SUFFIX  # the journal has the plain one

_PIECE = 1 << 20
_READ_AHEAD = 1 << 18  # lines with arrays inline are long

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


def target(jsonl: Path) -> Path:
    """Give the file to replace: for a link, the one it leads to."""
    return resolved(jsonl) if jsonl.is_symlink() else jsonl


def unfinished(jsonl: Path) -> Path:
    """Name the file in which a new version is written."""
    jsonl = target(jsonl)
    return jsonl.with_name(jsonl.name + _SUFFIX)


@dataclass(frozen=True)
class Part:
    """Some lines of a JSONL that any process can read, as long as the file does not change."""

    jsonl: Path
    state: tuple[int, int]  # of the file
    lines_before: int
    start: int
    end: int

    def lines(self) -> Iterator[Line]:
        """Read the lines."""
        with files.explained(self.jsonl), regular.opened(self.jsonl, _READ_AHEAD) as file:
            if files.state(file.fileno()) != self.state:
                raise _changed(self.jsonl)
            file.seek(self.start)
            for line in records.lines(file, self.lines_before, self.start):
                if line.offset >= self.end:
                    break
                yield line


def _changed(jsonl: Path) -> SourceChangedError:
    return SourceChangedError("changed meanwhile", path=jsonl, fix="run the same command again")


class Rewrite:
    """Replaces lines in their order, then adds some.

    The file changes only by ``publish``, in one step; a block that ends without it changes nothing.
    A missing file counts as empty.
    """

    def __init__(self, jsonl: Path) -> None:
        self.jsonl = jsonl = target(jsonl)
        self._there = jsonl.exists()
        with files.explained(jsonl):
            # Else a file without lines.
            self._fd = (
                regular.descriptor(jsonl) if self._there else os.open(os.devnull, os.O_RDONLY)
            )
        self._state = files.state(self._fd)
        self.size = self._state[0]  # of the old version
        self._open_end = self.size and os.pread(self._fd, 1, self.size - 1) != b"\n"
        self._position = 0  # up to here the old version is copied or replaced
        self._length = 0  # of the new one
        self._file: files.NewFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)
        if self._file is not None:
            self._file.__exit__(*error)

    @property
    def changed(self) -> bool:
        """Whether any line was replaced, dropped or added."""
        return self._file is not None

    def lines(self) -> Iterator[Line]:
        """Read the lines of the old version."""
        if self._there:
            yield from self.part(0, 0, self.size).lines()

    def part(self, lines_before: int, start: int, end: int) -> Part:
        """Give some lines of the old version, to be read by another process."""
        return Part(self.jsonl, self._state, lines_before, start, end)

    def replace(self, start: int, end: int, data: bytes) -> None:
        """Replace some bytes, for example a line without its line end."""
        self._copy(start)
        self._put(data)
        self._position = end

    def drop(self, line: Line) -> None:
        """Leave out a line, and its end."""
        end = line.offset + len(line.data or b"")
        with files.explained(self.jsonl):
            before, feed, _ = os.pread(self._fd, _PIECE, end).partition(b"\n")
        self.replace(line.offset, end + len(before + feed), b"")

    def add(self, data: bytes) -> None:
        """Append a line at the end."""
        self._copy(self.size)
        if self._open_end:
            self._put(b"\n")
            self._open_end = False
        self._put(data + b"\n")

    def publish(self, steps: Steps | None = None) -> None:
        """Replace the old version by the new one: now, or as one of several steps."""
        self._copy(self.size)
        assert self._file is not None
        if self._there and files.state(self._fd) != self._state:
            raise _changed(self.jsonl)
        self._file.seal(self._length)
        if steps is not None:
            steps.replace(self.jsonl, self._file.tmp)
            return
        files.publish(self._file.tmp, self.jsonl)
        files.sync_folder(self.jsonl.parent)

    def _copy(self, end: int) -> None:
        """Copy the old version up to here."""
        if self._file is None:
            self._file = files.NewFile(self.jsonl, tmp=unfinished(self.jsonl))
        while self._position < end:
            check()
            with files.explained(self.jsonl):
                piece = os.pread(self._fd, min(end - self._position, _PIECE), self._position)
            if not piece:  # somebody has truncated it, which ``publish`` notices
                break
            self._put(piece)
            self._position += len(piece)

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        self._file.put(data)
        self._length += len(data)
