"""How long it takes until the page shows shards of many samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Command, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import planted_shards


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask for the overview and the first samples of the shards of vectors."""
    for samples in sizes.duplicates:
        command: Command = [PYTHON, PEERS / "look_all.py", planted_shards(folder, samples)]
        ours = Contestant(OURS, command, "ours", times_itself=True)
        case: dict[str, int | str] = {"samples": samples}
        yield Question("look", case, [ours], samples, "samples")
