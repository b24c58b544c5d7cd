"""Checks of the arguments that a caller passes to our functions."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwright.errors import UsageError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # not urls.is_url: storage lies above


def integer(name: str, value: Any, least: int = 0) -> int:  # noqa: ANN401 - whatever a caller gives
    """Check an integer, NumPy's too, and give it as an int, which JSON can hold."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}", fix="give an integer") from None
    if number < least:
        raise UsageError(f"{name} is {number}", fix=f"give {least} or more")
    return number


def as_text(name: str, value: object, what: str = "a path") -> str:
    """Give a path, or anything else that is a str or PathLike, as a str."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{name} is {value!r}", fix=f"give {what}")
    return text


def place(name: str, value: object) -> Path:
    """Give a path as a Path; raise if it is a URL."""
    path = as_text(name, value)
    if _URL.match(path):
        raise UsageError("is a URL", path=path, fix="give a folder or file of this machine")
    return Path(path)


def place_or_none(name: str, value: object) -> Path | None:
    """Give a path as a Path, or None for none."""
    return None if value is None else place(name, value)


def names(name: str, value: object) -> list[str]:
    """Give one name, or several, as a list without repeats."""
    given = [value] if isinstance(value, str) else value
    if isinstance(given, Iterable):
        found = list(given)
        if all(isinstance(each, str) for each in found):
            return list(dict.fromkeys(found))
    raise UsageError(f"{name} is {value!r}", fix="give names")


def require_known(name: str, value: object, known: Collection[str]) -> None:
    """Raise if a value is given that is not among those known."""
    if value is not None and value not in known:
        raise UsageError(f"{name} {value}: unknown", fix=f"choose from {', '.join(known)}")


def require_mapping(name: str, value: object, what: str) -> None:
    """Raise if a value is not a mapping."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}", fix=f"give a mapping of {what}")
