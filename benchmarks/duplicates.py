"""Finding near-duplicates among many vectors, reading them from shards included."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Command, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import PLANTED, planted_shards, remove

_GIANT = 1_000_000  # vectors, which take minutes


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at sizes that are compared exactly, and in cells.

    One vector in a hundred belongs to a group of 2 to 1,000: an original, and copies whose cosine
    with it is 0.951 to 0.999. What is found are those in one group with others of theirs, at 0.95.
    """
    for vectors in sizes.duplicates:
        shards, out = planted_shards(folder, vectors), folder / "out"
        command: Command = [PYTHON, PEERS / "duplicates_all.py", shards, shards / PLANTED, out]
        rounds = 1 if vectors >= _GIANT else None
        ours = Contestant(OURS, command, "ours", times_itself=True, rounds=rounds)
        case: dict[str, int | str] = {"vectors": vectors}
        yield Question("duplicates", case, [ours], vectors, "vectors", partial(remove, out))
