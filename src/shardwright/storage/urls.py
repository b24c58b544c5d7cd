"""Folders and files at object stores, with the methods of a ``Path`` that we use.

Only ``Path`` and ``Url`` know where they are: code that works with either takes a ``Location``. A
file appears completely or not at all, so nothing here needs a lock, a temporary name or a sync.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias, TypeVar

from shardwright.errors import MissingExtraError, StorageError, UsageError
from shardwright.storage.objects import (
    ConditionError,
    Object,
    ObjectStore,
    RefusedError,
    tried,
    without_secrets,
)
from shardwright.validate import as_text

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.ASCII | re.DOTALL)
_LIKE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)
STORES = ("s3", "gs", "az")  # schemes of object stores that can be written to


@dataclass(frozen=True, order=True)
class Url:
    """A folder or a file at an object store: ``s3://BUCKET/KEY``."""

    text: str  # without a slash at its end

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.rstrip("/"))
        scheme, _, rest = self.text.partition("://")
        bucket = rest.partition("/")[0]
        if scheme not in STORES or not bucket or "@" in bucket:
            fix = "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER"
            what, path = "is not a URL that can be used here", without_secrets(self.text)
            raise UsageError(what, path=path, fix=fix)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """Give its last name."""
        return self.text.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Give the last suffix of its name."""
        return os.path.splitext(self.name)[1]

    @property
    def parent(self) -> Url:
        """Give the folder that it is in; the bucket itself has none."""
        return Url(self.text.rpartition("/")[0]) if self.key else self

    @property
    def key(self) -> str:
        """Give its key in the bucket; blank for the bucket."""
        return self.text.partition("://")[2].partition("/")[2]

    @property
    def _root(self) -> str:
        return self.text[: len(self.text) - len(self.key)].rstrip("/")

    @property
    def objects(self) -> ObjectStore:
        """Give the store that it is at."""
        process = os.getpid()
        with _connecting.setdefault(process, Lock()):  # the first of many threads makes it for all
            return _store(self._root, process)

    def absolute(self) -> Url:
        """Give itself."""
        return self

    def resolve(self) -> Url:
        """Give itself."""
        return self

    def read_bytes(self) -> bytes:
        """Read all bytes; raise FileNotFoundError."""
        return self.read_range(0, None)

    def read_range(self, start: int, size: int | None, stop: Event | None = None) -> bytes:
        """Read some bytes, fewer only at the end; raise FileNotFoundError."""
        try:
            return tried(lambda: self.objects.get(self.key, start, size), self.text, stop)
        except FileNotFoundError as error:
            raise self._missing() from error

    def head(self) -> Object | None:
        """Look at the file, if there is one."""
        return tried(lambda: self.objects.head(self.key), self.text)

    def stat(self) -> Object:
        """Look at the file; raise FileNotFoundError."""
        found = self.head()
        if found is None:
            raise self._missing()
        return found

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is a file."""
        return bool(self.key) and self.head() is not None

    def is_dir(self) -> bool:
        """Whether there are files below."""
        return next(self.walk(), None) is not None

    def is_symlink(self) -> bool:
        """Say no: a store has no links."""
        return False

    def names(self) -> list[str]:
        """List the names directly below, sorted; none if it is not a folder."""
        prefix = f"{self.key}/" if self.key else ""
        found = tried(lambda: self.objects.children(prefix), self.text)
        return sorted({name.rstrip("/") for name in found})

    def walk(self) -> Iterator[tuple[str, Object]]:
        """Give the name below this folder of each file, and what the store lists of it; sorted."""
        prefix, after = f"{self.key}/" if self.key else "", ""
        listing: Iterator[Object] | None = None

        def following() -> Object | None:
            nonlocal listing
            try:
                listing = listing or self.objects.list(prefix, after)
                return next(listing, None)
            except Exception:
                listing = None  # it ends with an error, and continues behind the last object
                raise

        while (found := tried(following, self.text)) is not None:
            yield found.key[len(prefix) :].rstrip("/"), found
            after = found.key

    def write(self, data: bytes, condition: str | None = None) -> str:
        """Write the file, and give its etag; raise ConditionError if it is not as demanded."""
        again = False

        def put() -> str:
            nonlocal again
            try:
                return self.objects.put(self.key, data, condition)
            except ConditionError:
                # The answer to an earlier try may have been lost.
                found = self.objects.head(self.key) if again else None
                if found is not None and self.objects.get(self.key) == data:
                    return found.etag
                raise
            finally:
                again = True

        return tried(put, self.text)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        tried(lambda: self.objects.delete([self.key]), self.text)

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.text)


Location: TypeAlias = Path | Url
At = TypeVar("At", Path, Url, Path | Url)  # what is made of a place is where that is


def is_url(text: str) -> bool:
    """Whether a text names a place by a URL."""
    return _SCHEME.fullmatch(text) is not None


def location(text: str) -> Location:
    """Give a path or a URL as what it is."""
    return Url(text) if is_url(text) else Path(text)


def place(name: str, value: object) -> Location:
    """Give an argument, a path or a URL, as what it is; a mistyped URL is not a path."""
    text = as_text(name, value)
    if (found := _LIKE_URL.match(text)) and not is_url(text):
        fix = f"write {found[1].lower()}://..., or ./{text} if it is a path"
        raise UsageError("is neither a path nor a URL", path=text, fix=fix)
    if is_url(text) and not {"", ".", ".."}.isdisjoint(text.rstrip("/").split("/")[2:]):
        what = "has a name in it that is empty, . or .."
        raise UsageError(what, path=without_secrets(text), fix="write it without")
    return location(text)


def local(place: Location) -> Path:
    """Give a folder, for what needs one of this machine; raise if it is a URL."""
    if isinstance(place, Url):
        raise UsageError("is a URL", path=place, fix="copy it to a folder of this machine")
    return place


def resolved(place: At) -> At:
    """Follow links; unlike ``Path.resolve``, also those that lead to themselves."""
    if isinstance(place, Url):
        return place
    return Path(os.path.realpath(place))


def is_within(place: Location, folder: Location) -> bool:
    """Whether a place is a folder, or somewhere below it."""
    there, above = resolved(place), resolved(folder)
    if isinstance(there, Url) or isinstance(above, Url):
        return f"{there}/".startswith(f"{above}/")
    return there.is_relative_to(above)


def relative_name(path: Location, folder: Location) -> str:
    """Make a path relative, as it is recorded, so that the tree can be moved.

    Nothing is relative to a URL, or beside one.
    """
    if isinstance(path, Url) or isinstance(folder, Url):
        name = str(resolved(path))
    else:
        name = os.path.relpath(resolved(path), resolved(folder))
    return os.fsencode(name).decode(errors="backslashreplace")


def joined(folder: Location, name: str) -> Path:
    """Find a file by its path relative to a folder, which was made with links resolved.

    None is relative to a URL.
    """
    if isinstance(folder, Url):
        return Path(name)
    plain = Path(os.path.normpath(folder / name))
    real = Path(os.path.normpath(resolved(folder) / name))
    return plain if os.path.realpath(plain) == os.path.realpath(real) else real


def placed(folder: Location, name: str) -> Location:
    """Find what a name says, which is a URL or relative to a folder."""
    return Url(name) if is_url(name) else joined(folder, name)


def exists(place: Location) -> bool:
    """Whether a file or a folder is there, also for what cannot be a path."""
    return place.exists() if isinstance(place, Url) else os.path.exists(place)


def names(folder: Location) -> list[str]:
    """List the names in a folder, sorted; none if it is not there."""
    if isinstance(folder, Url):
        return folder.names()
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def names_below(folder: Location) -> list[str]:
    """List the paths of all files below a folder, sorted; none if it is not there."""
    if isinstance(folder, Url):
        return [name for name, _ in folder.walk()]
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


# By process: a fork must not wait for a thread of its parent.
_connecting: dict[int, Lock] = {}


@cache
def _store(root: str, process: int) -> ObjectStore:
    """Give the client of a bucket: one for a process, because forks must not share connections."""
    scheme, _, bucket = root.partition("://")
    try:
        if scheme == "s3":
            from shardwright.storage.s3 import S3

            return S3(bucket)
        from shardwright.storage.clouds import Cloud

        return Cloud(scheme, bucket)
    except ImportError as error:
        fix = "run pip install '.[remote]' in the checkout of shardwright"
        raise MissingExtraError(f"needs {error.name}", path=root, fix=fix) from None
    except RefusedError as error:
        raise StorageError(error.what, path=root, fix=error.fix) from error
