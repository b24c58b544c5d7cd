"""A shard folder as a reader sees it: small files, and pieces of shards.

``LocalFolder`` maps shards into memory, so a piece is never copied; ``remote.RemoteFolder`` fetches
ranges. Both can be pickled and forked: every process opens the files for itself.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shardwright import regular
from shardwright.errors import InputMissingError, SourceChangedError, StorageError

Stamp = tuple[int, int, int, int]
COPY = "copy it here again, or pack again"  # the fix for a lost or damaged file


@dataclass(frozen=True)
class Shard:
    """A shard when the folder was opened."""

    path: str  # below the folder
    bucket: str
    samples: int
    bytes: int
    index_xxh3: str | None = None  # None where it has no index
    stamp: Stamp | None = None  # changes when it is replaced or written to; None if unknown
    records_xxh3: str | None = None  # None where its records are in no file of their own


class Piece(NamedTuple):
    """Some bytes of a shard."""

    shard: Shard
    offset: int
    size: int


def merge(pieces: Iterable[Piece], gap: int) -> Iterator[Piece]:
    """Join pieces of a shard that follow each other with at most this gap."""
    shard: Shard | None = None
    start = end = 0
    for piece in pieces:
        if piece.shard is not shard or not 0 <= piece.offset - end <= gap:
            if shard is not None:
                yield Piece(shard, start, end - start)
            shard, start = piece.shard, piece.offset
        end = piece.offset + piece.size
    if shard is not None:
        yield Piece(shard, start, end - start)


class Folder(Protocol):
    """Where shards are."""

    name: str
    groups_ahead: int  # groups of pieces to announce before they are read

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """Read small files; None for a missing one."""

    def stamp(self, path: str) -> Stamp | None:
        """Give a value that changes when a shard is replaced or written to, if there is one."""

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        """Give pieces of shards; raise if a shard has changed since the folder was opened."""

    def will_need(self, pieces: Sequence[Piece]) -> None:
        """Announce pieces that will be read soon, in one call."""

    def forget(self, pieces: Sequence[Piece]) -> None:
        """Take an announcement back."""


class LocalFolder:
    """A folder on a local file system."""

    groups_ahead = 2

    def __init__(self, path: Path) -> None:
        self.name = str(path)  # as it was given, for messages
        self.path = path.absolute()  # so that a process may change its working folder
        self._maps: OrderedDict[str, mmap.mmap] = OrderedDict()
        # Each mapped shard holds a file descriptor; half of the limit is left to others.
        self._most = max(16, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 15) // 2)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": OrderedDict()}  # another process maps for itself

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        for path in paths:
            try:
                yield regular.read(self.path / path)
            except FileNotFoundError:
                yield None
            except OSError as error:
                raise StorageError(str(error.strerror), path=f"{self.name}/{path}") from error

    def stamp(self, path: str) -> Stamp | None:
        try:
            found = os.stat(f"{self.path}/{path}")
        except OSError as error:
            what = str(error.strerror)
            raise InputMissingError(what, path=f"{self.name}/{path}", fix=COPY) from None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        maps: dict[str, memoryview] = {}
        views = []
        for shard, offset, size in pieces:
            if shard.path not in maps:  # each shard is checked once per call
                if self.stamp(shard.path) != shard.stamp:
                    raise self._changed(shard)
                maps[shard.path] = memoryview(self._map(shard))
            views.append(maps[shard.path][offset : offset + size])
        return views

    def will_need(self, pieces: Sequence[Piece]) -> None:
        for shard, offset, size in merge(pieces, mmap.PAGESIZE):
            start = offset - offset % mmap.PAGESIZE
            self._map(shard).madvise(mmap.MADV_WILLNEED, start, offset + size - start)

    def forget(self, pieces: Sequence[Piece]) -> None:
        """Do nothing: the system holds what was read ahead."""

    def _map(self, shard: Shard) -> mmap.mmap:
        mapped = self._maps.get(shard.path)
        if mapped is not None:
            self._maps.move_to_end(shard.path)
            return mapped
        try:
            with regular.opened(f"{self.path}/{shard.path}") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: it is empty
            what = f"cannot be mapped ({error})"
            raise StorageError(what, path=f"{self.name}/{shard.path}") from error
        if len(mapped) != shard.bytes:
            raise self._changed(shard)
        self._maps[shard.path] = mapped
        if len(self._maps) > self._most:
            self._maps.popitem(last=False)  # unmapped when no array uses it any more
        return mapped

    def _changed(self, shard: Shard) -> SourceChangedError:
        what, path = "changed since the folder was opened", f"{self.name}/{shard.path}"
        return SourceChangedError(what, path=path, fix="open the folder again")
