"""A folder as a reader of large files sees it: small files, and pieces of large ones.

``MappedFolder`` maps files into memory, so a piece is never copied; ``fetched.FetchedFolder``
fetches ranges. Both can be pickled and forked: every process opens the files for itself.
"""

from __future__ import annotations

import mmap
import os
import resource
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from shardwright import regular
from shardwright.errors import InputMissingError, SourceChangedError, StorageError, refusal

if TYPE_CHECKING:
    from shardwright.storage.fetched import FetchedFolder

Stamp = tuple[int, int, int, int]
Folder: TypeAlias = "MappedFolder | FetchedFolder"  # with the same methods
COPY = "copy it here again, or pack again"  # the fix for a lost or damaged file


class Whole(Protocol):
    """A large file when the folder was opened."""

    @property
    def path(self) -> str:
        """Its path below the folder."""

    @property
    def bytes(self) -> int:
        """How many it has."""

    @property
    def stamp(self) -> Stamp | None:
        """What ``stamp`` of the folder gave."""

    @property
    def checksum(self) -> str | None:
        """That of its content, if one is known."""


class Piece(NamedTuple):
    """Some bytes of a file."""

    whole: Whole
    offset: int
    size: int


def merge(pieces: Iterable[Piece], gap: int) -> Iterator[Piece]:
    """Join pieces of a file that follow each other with at most this gap."""
    whole: Whole | None = None
    start = end = 0
    for piece in pieces:
        if piece.whole is not whole or not 0 <= piece.offset - end <= gap:
            if whole is not None:
                yield Piece(whole, start, end - start)
            whole, start = piece.whole, piece.offset
        end = piece.offset + piece.size
    if whole is not None:
        yield Piece(whole, start, end - start)


class MappedFolder:
    """A folder on a local file system."""

    can_replace = True  # whether files are ever replaced there
    is_trusted = True  # whether its records may name files of this machine
    groups_ahead = 2  # groups of pieces to announce before they are read

    def __init__(self, path: Path) -> None:
        self.name = str(path)  # as it was given, for messages
        self._path = path.absolute()  # so that a process may change its working folder
        self.path: Path | None = self._path  # None where files cannot be listed
        self._maps: OrderedDict[str, mmap.mmap] = OrderedDict()
        # Each mapped file holds a file descriptor; half of the limit is left to others.
        self._most = max(16, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 15) // 2)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": OrderedDict()}  # another process, or copy, maps for itself

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        """Read small files; None for a missing one."""
        for path in paths:
            try:
                yield regular.read(f"{self._path}/{path}")
            except FileNotFoundError:
                yield None
            except OSError as error:
                raise refusal(Path(f"{self.name}/{path}"), error) from error

    def stamp(self, path: str) -> Stamp | None:
        """Give a value that changes when a file is replaced or written to, if there is one."""
        try:
            found = os.stat(f"{self._path}/{path}")
        except OSError as error:
            what = str(error.strerror)
            raise InputMissingError(what, path=f"{self.name}/{path}", fix=COPY) from None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        """Give pieces of files; raise if a file has changed since the folder was opened."""
        maps: dict[str, memoryview] = {}
        views = []
        for whole, offset, size in pieces:
            if whole.path not in maps:  # each file is checked once per call
                if self.stamp(whole.path) != whole.stamp:
                    raise self._changed(whole)
                maps[whole.path] = memoryview(self._map(whole))
            views.append(maps[whole.path][offset : offset + size])
        return views

    def will_need(self, pieces: Sequence[Piece]) -> None:
        """Announce pieces that will be read soon, in one call."""
        for whole, offset, size in merge(pieces, mmap.PAGESIZE):
            start = offset - offset % mmap.PAGESIZE
            self._map(whole).madvise(mmap.MADV_WILLNEED, start, offset + size - start)

    def forget(self, pieces: Sequence[Piece]) -> None:
        """Take an announcement back; here the system holds what was read ahead."""

    def renewed(self) -> Folder:
        """Give the folder without what it holds of its files."""
        return copy(self)

    def _map(self, whole: Whole) -> mmap.mmap:
        # Each call is one step, so that threads may share the maps, in the order of their use.
        mapped = self._maps.pop(whole.path, None) or self._mapped(whole)
        self._maps[whole.path] = mapped
        if len(self._maps) > self._most:
            self._maps.popitem(last=False)  # unmapped when no array uses it any more
        return mapped

    def _mapped(self, whole: Whole) -> mmap.mmap:
        path = f"{self.name}/{whole.path}"
        try:
            with regular.opened(f"{self._path}/{whole.path}") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise StorageError(f"cannot be mapped ({error})", path=path) from error
        if len(mapped) != whole.bytes:
            raise self._changed(whole)
        return mapped

    def _changed(self, whole: Whole) -> SourceChangedError:
        what, path = "changed since the folder was opened", f"{self.name}/{whole.path}"
        return SourceChangedError(what, path=path, fix="open the folder again")
