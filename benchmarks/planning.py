"""Planning a build of very many images: from the written inputs to shards, shuffled and split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Case, Command, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import planned_rows

PLAIN = "a list of dicts"
ARROW = "pyarrow's columns"
LINES = "reading the lines"
# The way of peers/plan_rows.py, its role, and whether it can do ten million.
WAYS: dict[str, tuple[str, Role, bool]] = {
    OURS: ("shardwright", "ours", True),
    PLAIN: ("dicts", "peer", False),
    ARROW: ("arrow", "peer", True),
    LINES: ("lines", "limit", True),
}
_GIANT = 10_000_000  # rows, which take a minute


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at sizes ten times apart, to show how cost grows.

    Ours also finds images that share an id, which the others take as they come.
    """
    for rows in sizes.planning:
        inputs, contestants = planned_rows(folder, rows), []
        for name, (way, role, any_size) in WAYS.items():
            if any_size or rows < _GIANT:
                command: Command = [PYTHON, PEERS / "plan_rows.py", inputs, way]
                rounds = 1 if rows >= _GIANT else None
                contestants.append(Contestant(name, command, role, rounds=rounds))
        case: Case = {"rows": rows}
        yield Question("planning", case, contestants, rows, "rows")
