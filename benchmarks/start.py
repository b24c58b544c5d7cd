"""How long it takes to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Command, Contestant, Question
from benchmarks.stores import real_store


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask of the help text and of the smallest job."""
    python = Contestant("limit: python -c pass", [PYTHON, "-c", "pass"])
    yield Question(
        "start: --help", [Contestant(OURS, [*SHARDWRIGHT, "--help"]), python], 1, "starts"
    )
    store = real_store(folder, 10)
    pack: Command = [
        *SHARDWRIGHT,
        "pack",
        "--dry-run",
        "--derived-dir",
        store,
        "--output-dir",
        folder / "out",
    ]
    yield Question(
        "start: pack --dry-run, 10 records", [Contestant(OURS, pack), python], 1, "starts"
    )
