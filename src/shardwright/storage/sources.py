"""Where a remote folder gets its bytes: S3 through our own client, other URLs through fsspec.

The one module that needs fsspec. A source belongs to the process that made it: a forked one cannot
use the connections of its parent. Our client of Azure and Google hangs in a forked process, so it
is used only where nobody forks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from shardwright.errors import MissingExtraError, StorageError, UsageError
from shardwright.storage.objects import without_secrets
from shardwright.storage.urls import STORES, Url

_PACKAGES = {"az": "adlfs", "gs": "gcsfs"}  # that fsspec needs


class Source(Protocol):
    """A folder of files that are read in ranges."""

    together: bool  # whether threads may ask for several ranges at once

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes | None:
        """Read a range of a file, or all of it; None if there is no such file."""


class ObjectSource:
    """A folder at an object store, read through our own client."""

    together = True

    def __init__(self, url: str) -> None:
        self._folder = Url(url)

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes | None:
        try:
            return (self._folder / path).read_range(start, size)
        except FileNotFoundError:
            return None


class FsspecSource:
    """A folder on any file system that fsspec knows."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._name = without_secrets(url)
        try:
            import fsspec
        except ImportError:
            fix = "run pip install '.[remote]' in the checkout of shardwright"
            raise MissingExtraError("needs fsspec", path=self._name, fix=fix) from None
        try:
            options = {"skip_instance_cache": True, **options}
            self._system, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError, OSError) as error:
            package = _PACKAGES.get(url.partition("://")[0])
            if package and isinstance(error, ImportError):
                fix = f"run pip install {package}"
                raise MissingExtraError(f"needs {package}", path=self._name, fix=fix) from None
            what = f"cannot be opened ({without_secrets(str(error))})"
            raise UsageError(what, path=self._name) from None
        self.together = bool(self._system.async_impl)  # others may have but one connection

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes | None:
        place = {} if size is None else {"start": start, "end": start + size}
        try:
            data: bytes = self._system.cat_file(f"{self._root}/{path}", **place)
        except FileNotFoundError:
            return None
        except Exception as error:  # each file system has its own
            text = without_secrets(f"{type(error).__name__}: {error}")  # some have no message
            what = f"cannot be read ({text})"
            raise StorageError(what, path=f"{self._name}/{path}") from None
        return data


def source_at(url: str, options: Mapping[str, Any], *, forks: bool) -> Source:
    """Connect to what is at a URL; options are for fsspec."""
    ours = ("s3",) if forks else STORES
    if url.partition("://")[0] in ours and not options:
        return ObjectSource(url)
    return FsspecSource(url, options)
