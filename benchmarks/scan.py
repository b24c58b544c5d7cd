"""Scanning and planning (a dry run) against the plain script's scan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Command, Contestant, Question
from benchmarks.stores import linked_store

PEERS = Path(__file__).parent / "peers"


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask at sizes ten times apart, to show how cost grows.

    The plain script only asks whether files exist. Our dry run also opens every array it would
    pack, to check its header and size; with a limit of 1 it does what the plain script does.
    """
    for records in (10_000,) if quick else (10_000, 100_000, 1_000_000):
        store = linked_store(folder, records)
        ours: Command = [
            *SHARDWRIGHT,
            "pack",
            "--dry-run",
            "--derived-dir",
            store,
            "--output-dir",
            folder / "out",
        ]
        yield Question(
            f"scan {records:,} records",
            [
                Contestant(OURS, [*ours, "--limit", "1"]),
                Contestant("ours, all arrays opened", ours),
                Contestant(
                    "plain script",
                    [PYTHON, PEERS / "plain_pack.py", store, folder / "out", "--dry-run"],
                ),
            ],
            records,
            "records",
        )
