"""Names that were read from a file: each is checked here before it becomes a path.

A folder may come from anybody. What its files name must not lead out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardwright.errors import DamageError
from shardwright.storage.urls import Location
from shardwright.text import shown

_LONGEST_SHOWN = 60  # characters of a name in an error
_LONGEST = 255  # bytes of a name, as file systems limit it
_NO_NAMES = frozenset({"", ".", ".."})


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
