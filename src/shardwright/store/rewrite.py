"""A new version of a JSONL: some lines replaced, dropped or added, every other byte unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shardwright import regular
from shardwright.errors import SourceChangedError
from shardwright.interrupts import check
from shardwright.storage import files
from shardwright.storage.files import NewFile
from shardwright.storage.steps import Steps
from shardwright.store import records
from shardwright.store.records import Line

_SUFFIX = ".merge" + files.TMP_SUFFIX  # the journal has the plain one

_PIECE = 1 << 20
_READ_AHEAD = 1 << 18  # lines with arrays inline are long


def target(jsonl: Path) -> Path:
    """Give the file to replace: for a link, the one it leads to."""
    return jsonl.resolve() if jsonl.is_symlink() else jsonl


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
        self._file: NewFile | None = None

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
            self._file = NewFile(self.jsonl, tmp=unfinished(self.jsonl))
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
