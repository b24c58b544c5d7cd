"""A folder of large files behind a URL, read in ranges.

No cheap check works on all stores to see whether a remote object was replaced. But the reader
compares the tar headers in each range with the index, so it misses only a shard with the same
samples at the same places and other contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import DamageError, InputMissingError, StorageError, UsageError
from shardwright.storage.cache import Cache
from shardwright.storage.fetching import Ahead
from shardwright.storage.objects import together, without_secrets
from shardwright.storage.pieces import Folder, MappedFolder, Piece, Stamp, merge
from shardwright.storage.sources import Source, source_at

_GAP = 1 << 16  # bytes that are faster to fetch than a second request

_COPY = "copy it there again"


class FetchedFolder:
    """A folder at an object store, or on any other file system that fsspec knows."""

    can_replace = False
    groups_ahead = 8  # as far as they fit into memory: a store is slow to answer, but many at once

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        cache: Cache | None = None,
        *,
        forks: bool = True,  # whether the process may be forked later
    ) -> None:
        self._url = url.rstrip("/")
        self.path: Path | None = None
        self.name = without_secrets(self._url)
        self._options, self._forks = dict(options), forks
        self._cache = cache
        self._opened: tuple[int, Source, Ahead | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}  # another process connects for itself

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        source, _ = self._open()
        return together(source.get, paths) if source.together else map(source.get, paths)

    def stamp(self, path: str) -> Stamp | None:
        return None

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        ranges = list(merge(pieces, _GAP))
        _, ahead = self._open()
        fetched = ahead.fetch(ranges) if ahead else map(self._get, ranges)
        found = iter(zip(ranges, fetched, strict=True))
        views = []
        current: Piece | None = None
        for piece in pieces:
            if current is None or not _holds(current, piece):  # then the next range does
                current, view = next(found)
            start = piece.offset - current.offset
            views.append(view[start : start + piece.size])
        return views

    def will_need(self, pieces: Sequence[Piece]) -> None:
        _, ahead = self._open()
        if ahead:
            ahead.announce(merge(pieces, _GAP))

    def forget(self, pieces: Sequence[Piece]) -> None:
        if self._opened and self._opened[0] == os.getpid() and self._opened[2]:
            self._opened[2].forget(merge(pieces, _GAP))

    def renewed(self) -> Folder:
        return self

    def _get(self, wanted: Piece) -> memoryview:
        """Give a range: from the cache, or else from the source."""
        if self._cache is None:
            return memoryview(self._fetch(wanted))
        return self._cache.get(self._url, wanted, self._fetch)

    def _fetch(self, wanted: Piece) -> bytes:
        source, _ = self._open()
        name, size = f"{self.name}/{wanted.whole.path}", wanted.size
        data = source.get(wanted.whole.path, wanted.offset, size)
        if data is None:
            raise InputMissingError("is missing", path=name, fix=_COPY)
        if len(data) > size:
            what = f"server sent {len(data):,} bytes instead of {size:,}: it does not serve ranges"
            raise StorageError(what, path=name, fix="copy the shards to another server")
        if len(data) < size:
            raise DamageError("is shorter than its index says", path=name, fix=_COPY)
        return data

    def _open(self) -> tuple[Source, Ahead | None]:
        if self._opened is None or self._opened[0] != os.getpid():
            source = source_at(self._url, self._options, forks=self._forks)
            ahead = Ahead(self._get) if source.together else None
            self._opened = os.getpid(), source, ahead
        return self._opened[1:]


def folder_at(
    location: str,
    options: Mapping[str, Any] | None = None,
    cache: Cache | None = None,
    *,
    forks: bool = True,
) -> Folder:
    """Open a folder at a path or a URL to read it; all but the first are for URLs."""
    if "://" in location:
        return FetchedFolder(location, options or {}, cache, forks=forks)
    if cache is not None:
        raise UsageError("cache_dir is for shards at a URL", path=location, fix="leave it out")
    if os.path.isfile(location):
        raise UsageError("is a file", path=location, fix="give the folder that holds the shards")
    return MappedFolder(Path(location))


def _holds(outer: Piece, piece: Piece) -> bool:
    return (
        outer.whole is piece.whole
        and outer.offset <= piece.offset
        and piece.offset + piece.size <= outer.offset + outer.size
    )
