"""A folder of large files behind a URL, read in ranges: S3 by our client, others by fsspec.

No cheap check works on all stores to see whether a remote object was replaced. But the reader
compares the tar headers in each range with the index, so it misses only a shard with the same
samples at the same places and other contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from shardwright.errors import (
    DamageError,
    InputMissingError,
    MissingExtraError,
    StorageError,
    UsageError,
)
from shardwright.storage import urls
from shardwright.storage.ahead import Ahead
from shardwright.storage.cache import Cache
from shardwright.storage.objects import together, without_secrets
from shardwright.storage.pieces import Folder, MappedFolder, Piece, Stamp, merge
from shardwright.storage.urls import Location, Url

_GAP = 1 << 16  # bytes that are faster to fetch than a second request
_PACKAGES = {"az": "adlfs", "gs": "gcsfs"}  # that fsspec needs

# Reads a range of a file, or all of it; None if there is no such file.
Read: TypeAlias = Callable[..., bytes | None]
_COPY = "copy it there again"


class FetchedFolder:
    """A folder at an object store, or on any other file system that fsspec knows."""

    can_replace = False
    is_trusted = False
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
        self._opened: tuple[int, Read, Ahead[Piece, memoryview] | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}  # another process connects for itself

    def read_files(self, paths: Sequence[str]) -> Iterator[bytes | None]:
        read, ahead = self._open()
        return together(read, paths) if ahead else map(read, paths)

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
        read, _ = self._open()
        name, size = f"{self.name}/{wanted.whole.path}", wanted.size
        data = read(wanted.whole.path, wanted.offset, size)
        if data is None:
            raise InputMissingError("is missing", path=name, fix=_COPY)
        if len(data) > size:
            what = f"server sent {len(data):,} bytes instead of {size:,}: it does not serve ranges"
            raise StorageError(what, path=name, fix="copy the shards to another server")
        if len(data) < size:
            raise DamageError("is shorter than its index says", path=name, fix=_COPY)
        return data

    def _open(self) -> tuple[Read, Ahead[Piece, memoryview] | None]:
        """Connect; what reads belongs to this process, as a fork cannot use its connections."""
        if self._opened is None or self._opened[0] != os.getpid():
            # Our client of Azure and Google hangs in a forked process.
            ours = ("s3",) if self._forks else urls.STORES
            if self._url.partition("://")[0] in ours and not self._options:
                read, many = _by_our_client(Url(self._url)), True
            else:
                read, many = _by_fsspec(self._url, self._options)
            self._opened = os.getpid(), read, Ahead[Piece, memoryview](self._get) if many else None
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


def listable(location: str) -> Location | None:
    """Give a folder at a path or a URL; None if only fsspec knows it, which does not list it."""
    scheme, _, rest = location.partition("://")
    return urls.location(location) if not rest or scheme in urls.STORES else None


def _holds(outer: Piece, piece: Piece) -> bool:
    return (
        outer.whole is piece.whole
        and outer.offset <= piece.offset
        and piece.offset + piece.size <= outer.offset + outer.size
    )


def _by_our_client(folder: Url) -> Read:
    def read(path: str, start: int = 0, size: int | None = None) -> bytes | None:
        try:
            return (folder / path).read_range(start, size)
        except FileNotFoundError:
            return None

    return read


def _by_fsspec(url: str, options: Mapping[str, Any]) -> tuple[Read, bool]:
    """Give what reads below a URL, and whether threads may read several ranges at once."""
    name = without_secrets(url)
    try:
        import fsspec
    except ImportError:
        fix = "run pip install '.[remote]' in the checkout of shardwright"
        raise MissingExtraError("needs fsspec", path=name, fix=fix) from None
    try:
        system, root = fsspec.core.url_to_fs(url, **{"skip_instance_cache": True, **options})
    except (ImportError, ValueError, OSError) as error:
        package = _PACKAGES.get(url.partition("://")[0])
        if package and isinstance(error, ImportError):
            fix = f"run pip install {package}"
            raise MissingExtraError(f"needs {package}", path=name, fix=fix) from None
        what = f"cannot be opened ({without_secrets(str(error))})"
        raise UsageError(what, path=name) from None

    def read(path: str, start: int = 0, size: int | None = None) -> bytes | None:
        place = {} if size is None else {"start": start, "end": start + size}
        try:
            data: bytes = system.cat_file(f"{root}/{path}", **place)
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has its own
            text = without_secrets(f"{type(error).__name__}: {error}")  # some have no message
            raise StorageError(f"cannot be read ({text})", path=f"{name}/{path}") from None
        return data

    return read, bool(system.async_impl)  # others may have but one connection
