"""Scanning and planning (a dry run) against the plain script's scan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, SHARDWRIGHT, Command, Contestant, Question
from benchmarks.pack import PLAIN
from benchmarks.sizes import Sizes
from benchmarks.stores import linked_store

EVERY_ARRAY = "shardwright, every array opened"
_GIANT = 1_000_000  # records, for which others than ours take a minute


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at sizes ten times apart, to show how cost grows.

    The plain script only asks whether files exist. Our dry run also opens every array it would
    pack, to check its header and size; with a limit of 1 it does what the plain script does.
    """
    for records in sizes.scan:
        store, out = linked_store(folder, records), folder / "out"
        paths: Command = ["--derived-dir", store, "--output-dir", out]
        ours: Command = [*SHARDWRIGHT, "pack", "--dry-run", *paths]
        plain: Command = [PYTHON, PEERS / "plain_pack.py", store, out, "--dry-run"]
        contestants = [
            Contestant(OURS, [*ours, "--limit", "1"], "ours"),
            Contestant(PLAIN, plain, rounds=1 if records >= _GIANT else None),
        ]
        if records < _GIANT:
            # A dry run says by 1 that shards of all these would not fit on the disk.
            contestants.append(Contestant(EVERY_ARRAY, ours, "variant", exit_codes=(0, 1)))
        yield Question("scan", {"records": records}, contestants, records, "records")
