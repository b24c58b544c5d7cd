"""How long it takes to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Case, Command, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import real_store


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask of the help text and of the smallest job."""
    python = Contestant("python -c pass", [PYTHON, "-c", "pass"], "limit")
    ours = Contestant(OURS, [*SHARDWRIGHT, "--help"], "ours")
    yield Question("start", {"command": "--help"}, [ours, python], 1, "starts")
    store = real_store(folder, sizes.start)
    dry_run: Command = ["pack", "--dry-run", "--derived-dir", store, "--output-dir", folder / "out"]
    ours = Contestant(OURS, [*SHARDWRIGHT, *dry_run], "ours")
    case: Case = {"command": "pack --dry-run", "records": sizes.start}
    yield Question("start", case, [ours, python], 1, "starts")
