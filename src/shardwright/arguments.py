"""Arguments that no parser has read: those of the functions."""

from __future__ import annotations

import operator
from typing import Any

from shardwright.errors import UsageError


def whole(name: str, value: Any, least: int = 0) -> int:  # noqa: ANN401 - whatever a caller gives
    """Give a number as a plain int, which JSON can hold; NumPy's are as welcome."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r}; give a whole number") from None
    if number < least:
        raise UsageError(f"{name} is {number}; give {least} or more")
    return number
