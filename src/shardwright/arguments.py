"""Arguments that no parser has read: those of the functions."""

from __future__ import annotations

import operator
from typing import Any

from shardwright.errors import UsageError


def whole(name: str, value: Any, least: int = 0) -> int:  # noqa: ANN401 - whatever a caller gives
    """Give a number as a plain int, which JSON can hold; NumPy's are as welcome."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}; give a whole number") from None
    if number < least:
        raise UsageError(f"{name} is {number}; give {least} or more")
    return number


def require_switches(**given: object) -> None:
    """Raise if one is not a bool; "no" would pass for a yes."""
    for name, value in given.items():
        if not isinstance(value, bool):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is {value!r}; give True or False")
