"""Migration of a Stage 1 file against a plain json loop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, SHARDWRIGHT, Command, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import remove, stage1_file

_GIANT = 60_000  # records, for which some take a minute


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at two sizes; each run works on a copy of its own.

    What a run has written is set aside until all have run: ext4 does not use an inode again for
    minutes, and to pass over those of ten thousand files takes longer than to write them.
    """
    remove(folder / "out")
    out = folder / "out/run"
    for records in sizes.migrate:
        ours: Command = [*SHARDWRIGHT, "migrate", "--derived-dir", out]
        plain: Command = [PYTHON, PEERS / "plain_migrate.py", out]
        once = 1 if records >= _GIANT else None
        yield Question(
            "migrate",
            {"records": records},
            [
                Contestant(OURS, ours, "ours", rounds=once),
                Contestant("plain json loop", plain, rounds=once),
            ],
            records,
            "records",
            partial(_copy, stage1_file(folder, records), out),
        )


def _copy(source: Path, out: Path) -> None:
    if out.exists():
        for path in out.glob("*.jsonl*"):  # large, and few
            path.unlink()
        out.rename(out.with_name(str(len(os.listdir(out.parent)))))
    shutil.copytree(source, out)
    os.sync()  # or the disk is busy with the copy while the contestant runs
