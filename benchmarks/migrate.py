"""Migration of a Stage 1 file against a plain json loop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, SHARDWRIGHT, Contestant, Question
from benchmarks.sizes import GIANT_MIGRATION, Sizes
from benchmarks.stores import remove, stage1_file


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at two sizes; each run works on a copy of its own."""
    out = folder / "out"
    for records in sizes.migrate:
        yield Question(
            "migrate",
            {"records": records},
            [
                Contestant(OURS, [*SHARDWRIGHT, "migrate", "--derived-dir", out], "ours"),
                Contestant("plain json loop", [PYTHON, PEERS / "plain_migrate.py", out]),
            ],
            records,
            "records",
            partial(_copy, stage1_file(folder, records), out),
            rounds=1 if records >= GIANT_MIGRATION else None,
        )


def _copy(source: Path, out: Path) -> None:
    remove(out)
    shutil.copytree(source, out)
