"""A shard folder behind an fsspec URL, read in ranges. The one module that needs fsspec.

No cheap check works on all file systems to see whether a remote object was replaced. But the
reader compares the tar headers in each range with the index, so it misses only a shard with the
same samples at the same places and other contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.errors import (
    DamageError,
    InputMissingError,
    MissingExtraError,
    StorageError,
    UsageError,
)
from shardwright.shards.reader.folder import Piece, Stamp, merge

_GAP = 1 << 16  # bytes that are faster to fetch than a second request
_AT_ONCE = 256  # files requested together

_COPY = "copy it there again"

Range = tuple[str, int | None, int | None]


class RemoteFolder:
    """A folder on any file system that fsspec knows."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.name = url.rstrip("/")
        self._options = dict(options)
        self._opened: tuple[int, Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}  # another process connects for itself

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            yield from self._fetch([(path, None, None) for path in some])

    def stamp(self, path: str) -> Stamp | None:
        return None

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        ranges = list(merge(pieces, _GAP))
        fetched = self._fetch([(r.shard.path, r.offset, r.offset + r.size) for r in ranges])
        found = iter(zip(ranges, fetched, strict=True))
        views = []
        current: Piece | None = None
        for piece in pieces:
            if current is None or not _holds(current, piece):  # then the next range does
                current, data = next(found)
                view = self._checked(current, data)
            start = piece.offset - current.offset
            views.append(view[start : start + piece.size])
        return views

    def will_need(self, pieces: Sequence[Piece]) -> None:
        """Do nothing: all ranges of a group are requested together when it is read."""

    def _checked(self, wanted: Piece, data: bytes | None) -> memoryview:
        name, size = f"{self.name}/{wanted.shard.path}", wanted.size
        if data is None:
            raise InputMissingError("is missing", path=name, fix=_COPY)
        if len(data) > size:
            what = f"server sent {len(data):,} bytes instead of {size:,}: it does not serve ranges"
            raise StorageError(what, path=name, fix="copy the shards to another server")
        if len(data) < size:
            raise DamageError("is shorter than its index says", path=name, fix=_COPY)
        return memoryview(data)

    def _fetch(self, ranges: Sequence[Range]) -> Iterator[bytes | None]:
        """Fetch ranges together where the file system can; None where there is no such file."""
        system, root = self._system()
        paths = [f"{root}/{path}" for path, _, _ in ranges]
        starts, ends = [start for _, start, _ in ranges], [end for _, _, end in ranges]
        for (path, _, _), data in zip(ranges, system.cat_ranges(paths, starts, ends), strict=True):
            if not isinstance(data, bytes | FileNotFoundError):
                what = f"cannot be read ({type(data).__name__}: {data})"  # some have no message
                raise StorageError(what, path=f"{self.name}/{path}")
            yield data if isinstance(data, bytes) else None

    def _system(self) -> tuple[Any, str]:
        # A forked process cannot use the connections of its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                import fsspec
            except ImportError:
                fix = "run pip install '.[remote]' in the checkout of shardwright"
                raise MissingExtraError("needs fsspec", path=self.name, fix=fix) from None
            try:
                options = {"skip_instance_cache": True, **self._options}
                system, root = fsspec.core.url_to_fs(self.name, **options)
            except (ImportError, ValueError, OSError) as error:
                raise UsageError(f"cannot be opened ({error})", path=self.name) from None
            self._opened = os.getpid(), system, root
        return self._opened[1], self._opened[2]


def _holds(outer: Piece, piece: Piece) -> bool:
    return (
        outer.shard is piece.shard
        and outer.offset <= piece.offset
        and piece.offset + piece.size <= outer.offset + outer.size
    )
