"""How long to go on: ``make soak`` sets SHARDWRIGHT_SOAK, and some tests do as many times more."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

SOAK = int(os.environ.get("SHARDWRIGHT_SOAK", "0"))
_PREFIX = "tally "
_T = TypeVar("_T")


class Tally(Protocol):
    """Counts what a test has tried, by name; all are summed up below the last line of a run."""

    def __call__(self, **counts: int) -> None: ...


def times(count: int) -> int:
    """Say how often to do what is done this often in the normal run."""
    return count * max(SOAK, 1)


def stride(step: int) -> int:
    """Say how many steps to go at a time, where the normal run goes this many."""
    return max(1, step // max(SOAK, 1))


def some(found: Sequence[_T], count: int, start: int = 0) -> Sequence[_T]:
    """Give about so many of a series, evenly and from another start if asked; under soak all."""
    step = 1 if SOAK else max(1, len(found) // count)
    return found[start % step :: step]


def properties(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Give counts as properties of a test, which find their way from any process."""
    return [(_PREFIX + name, count) for name, count in counts.items()]


def summed(found: Iterable[tuple[str, Any]]) -> Counter[str]:
    """Sum up the counts among the properties of tests."""
    total: Counter[str] = Counter()
    for name, count in found:
        if name.startswith(_PREFIX):
            total[name.removeprefix(_PREFIX).replace("_", " ")] += count
    return total
