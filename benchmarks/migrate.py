"""Migration of a Stage 1 file against a plain json loop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Contestant, Question
from benchmarks.stores import stage1_file

PEERS = Path(__file__).parent / "peers"


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask at two sizes; each run works on a copy of its own."""
    for records in (2_000,) if quick else (10_000, 60_000):
        source, copy = stage1_file(folder, records), folder / "copy"

        def before(source: Path = source, copy: Path = copy) -> None:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            os.sync()

        yield Question(
            f"migrate {records:,} records",
            [
                Contestant(OURS, [*SHARDWRIGHT, "migrate", "--derived-dir", copy]),
                Contestant("plain json loop", [PYTHON, PEERS / "plain_migrate.py", copy]),
            ],
            records,
            "records",
            before,
        )
