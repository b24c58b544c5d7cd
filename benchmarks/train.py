"""Training with the loop of examples/train_dit.py: how long it waits for data, by reader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import shapes, warm


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask for a number of steps on the shapes of the demo, with a reading process beside it."""
    shards = shapes(folder, sizes.pictures)
    ways = {OURS: "shardwright", "webdataset": "webdataset"}
    yield Question(
        "train",
        {"pictures": sizes.pictures, "steps": sizes.steps},
        [
            Contestant(
                name,
                [PYTHON, PEERS / "train_all.py", shards, way, str(sizes.steps)],
                "ours" if name == OURS else "peer",
                times_itself=True,
            )
            for name, way in ways.items()
        ],
        sizes.steps,
        "steps",
        partial(warm, shards),
    )
