"""Paths and URLs as texts, as records and captions have them: the same questions to both.

Names that were read from a file are checked here before they become paths: a folder may come from
anybody, and what its files name must not lead out of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from shardwright.errors import DamageError, ShardwrightError
from shardwright.storage.urls import Location, Url, is_url
from shardwright.text import near, shown

_LONGEST_SHOWN = 60  # characters of a name in an error
_LONGEST = 255  # bytes of a name, as file systems limit it
_NO_NAMES = frozenset({"", ".", ".."})
_ASKED = 3  # paths, where each look is a request


def absolute(path: str) -> str:
    """Make a path absolute; bytes that are not Unicode are replaced, for JSON."""
    return path if is_url(path) else os.fsencode(os.path.abspath(path)).decode(errors="replace")


def is_absolute(path: str) -> bool:
    """Whether a path needs no folder that it begins at."""
    return path.startswith("/") or is_url(path)


def normal(path: str) -> str:
    """Write a path without what changes nothing in it."""
    scheme, mark, rest = path.partition("://") if is_url(path) else ("", "", path)
    rest = os.path.normpath(rest)
    return scheme + mark + (rest[1:] if rest.startswith("//") else rest)


def joined(folder: str, path: str) -> str:
    """Give a path that begins at a folder, unless it is absolute."""
    return normal(path if is_absolute(path) else f"{folder.rstrip('/')}/{path}")


def relative(path: str, folder: str) -> str | None:
    """Give a path from a folder, also by going up; None if one of them is a URL."""
    return None if is_url(path) or is_url(folder) else os.path.relpath(path, folder)


def forms(path: Location | str) -> list[str]:
    """Name a file or folder as it is given and as it is without links, absolute."""
    text = str(path)
    found = [text] if is_url(text) else [os.path.abspath(text), os.path.realpath(text)]
    return list(dict.fromkeys(found))


def above(path: str) -> Iterator[str]:
    """Name a folder and each one above it, up to the root or the bucket."""
    yield path
    while (upper := os.path.dirname(path)) != path and is_url(upper) == is_url(path):
        yield upper
        path = upper


def shown_near(path: str) -> str:
    """Show a path as seen from the working folder."""
    return shown(path) if is_url(path) else near(path)


def is_gone(path: str) -> bool:
    """Whether a file is missing; in a folder that cannot be read, or at a URL, it may exist."""
    if is_url(path):
        return False
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # a path with NUL is no path
        pass
    return False


class Presence:
    """Whether files are there: many of this machine, few at a URL, where each look is a request.

    Only stores that are in use anyway are asked.
    """

    def __init__(self, used: list[str]) -> None:
        self._stores = tuple(filter(is_url, used))
        self._folders: dict[str, bool] = {}

    def some(self, paths: list[str], folders: list[str]) -> list[str]:
        """Give the paths to look for, or some of them if that takes requests."""
        if self._stores or any(map(is_url, folders)):
            return paths[:: max(1, len(paths) // _ASKED)]
        return paths

    def has(self, path: str) -> bool:
        """Whether there is a file."""
        above = os.path.dirname(path)
        if above not in self._folders:
            far = is_url(above)
            self._folders[above] = above.startswith(self._stores) if far else os.path.isdir(above)
        try:
            return self._folders[above] and exists(path)
        except (ShardwrightError, ValueError):  # not to be asked for, or no path
            return False


def exists(path: str) -> bool:
    """Whether there is a file."""
    return Url(path).is_file() if is_url(path) else os.path.exists(path)


def is_below(name: str) -> bool:
    """Whether a path, as it is written, leads to a place below the folder it is joined to."""
    parts = name.split("/")
    fits = all(len(part.encode(errors="replace")) <= _LONGEST for part in parts)
    return fits and "\0" not in name and _NO_NAMES.isdisjoint(parts)


def require_names(
    names: Iterable[str],
    allowed: Callable[[str], bool],
    kind: str,
    path: Location | str,
    fix: str,
) -> None:
    """Raise if one of the names in a file is not allowed there; ``kind`` says what it must be."""
    for name in names:
        if not allowed(name):
            brief = shown(name[:_LONGEST_SHOWN] + "..." * (len(name) > _LONGEST_SHOWN))
            raise DamageError(f"names {brief!r}, which is not {kind}", path=path, fix=fix)
