"""How well derive keeps an encoder busy, against the loop one would write first.

The encoders only sleep, as long as a GPU would work, so what is measured is everything around them:
reading, preparing, batching, checking, and making it durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import images, remove

ALONE = "the encoders alone"
WAYS: dict[str, tuple[str, Role]] = {
    OURS: ("shardwright", "ours"),
    "one image at a time": ("loop", "peer"),
    ALONE: ("alone", "limit"),
}


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask once."""
    source, out = images(folder, sizes.derive), folder / "out"
    yield Question(
        "derive",
        {"images": sizes.derive, "encoders": "simulated GPU"},
        [
            Contestant(
                name, [PYTHON, PEERS / "derive_all.py", source, out, way], role, times_itself=True
            )
            for name, (way, role) in WAYS.items()
        ],
        sizes.derive,
        "images",
        partial(remove, out),
    )
