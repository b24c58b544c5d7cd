"""A shard folder behind an fsspec URL, read in ranges. The one module that needs fsspec.

Nothing tells cheaply, and for all file systems, whether a remote object was replaced. But a range
starts with the tar headers of what it holds, and the reader compares those with the index: so what
goes unnoticed is a shard with the same samples at the same places, and other contents.
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

_GAP = 1 << 16  # bytes that are sooner fetched than a second request is answered
_AT_ONCE = 256  # files asked for at a time

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
            for path, data in zip(some, self._fetch([(p, None, None) for p in some]), strict=True):
                if isinstance(data, FileNotFoundError):
                    yield None
                elif isinstance(data, bytes):
                    yield data
                else:
                    raise StorageError(f"{self.name}/{path}: cannot be read ({_told(data)})")

    def stamp(self, path: str) -> Stamp | None:
        return None

    def views(self, pieces: Sequence[Piece]) -> list[memoryview]:
        ranges = list(merge(pieces, _GAP))
        fetched = self._fetch([(r.shard.path, r.offset, r.offset + r.size) for r in ranges])
        found = iter(zip(ranges, fetched, strict=True))
        views = []
        whole: Piece | None = None
        for piece in pieces:
            if whole is None or not _holds(whole, piece):  # then it is the next one
                whole, data = next(found)
                view = self._checked(whole, data)
            start = piece.offset - whole.offset
            views.append(view[start : start + piece.size])
        return views

    def will_need(self, pieces: Sequence[Piece]) -> None:
        """Do nothing: all ranges of a group are on their way together once it is read."""

    def _checked(self, wanted: Piece, data: object) -> memoryview:
        name = f"{self.name}/{wanted.shard.path}"
        if isinstance(data, FileNotFoundError):
            raise InputMissingError(f"{name}: not there; copy it there again")
        if not isinstance(data, bytes):
            raise StorageError(f"{name}: cannot be read ({_told(data)})")
        if len(data) > wanted.size:
            raise StorageError(
                f"{name}: gave {len(data)} bytes where {wanted.size} were asked for; its server "
                "does not serve ranges, so copy the shards elsewhere"
            )
        if len(data) < wanted.size:
            raise DamageError(f"{name}: is shorter than its index says; copy it there again")
        return memoryview(data)

    def _fetch(self, ranges: Sequence[Range]) -> list[object]:
        """Fetch ranges, many at a time where the file system can; give bytes or exceptions."""
        system, root = self._system()
        paths = [f"{root}/{path}" for path, _, _ in ranges]
        starts = [start for _, start, _ in ranges]
        found: list[object] = system.cat_ranges(paths, starts, [end for _, _, end in ranges])
        return found

    def _system(self) -> tuple[Any, str]:
        # A forked process cannot use the connections and the event loop of its parent.
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                import fsspec
            except ImportError:
                raise MissingExtraError(
                    f"{self.name}: needs fsspec: pip install '.[remote]' in the checkout of "
                    "shardwright"
                ) from None
            try:
                options = {"skip_instance_cache": True, **self._options}
                system, root = fsspec.core.url_to_fs(self.name, **options)
            except (ImportError, ValueError, OSError) as error:
                raise UsageError(f"{self.name}: cannot be opened ({error})") from None
            self._opened = os.getpid(), system, root
        return self._opened[1], self._opened[2]


def _holds(whole: Piece, piece: Piece) -> bool:
    return (
        whole.shard is piece.shard
        and whole.offset <= piece.offset
        and piece.offset + piece.size <= whole.offset + whole.size
    )


def _told(error: object) -> str:
    return f"{type(error).__name__}: {error}"  # the message of some is empty
