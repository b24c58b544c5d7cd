"""How well derive keeps an encoder busy, against the loop one would write first.

The encoders only sleep, as long as a GPU would work, so what is measured is everything around them:
reading, preparing, batching, checking, and making it durable. With pictures of a megapixel, reading
keeps up; with photographs of twelve and a faster GPU, it is what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import (
    BEFORE,
    FAST,
    OURS,
    PEERS,
    PYTHON,
    Command,
    Contestant,
    Question,
    Role,
)
from benchmarks.sizes import Sizes
from benchmarks.stores import images, photographs, remove, source

ALONE = "the encoders alone"
LOOP = "one image at a time"
# The way of peers/derive_all.py, and its role.
WAYS: dict[str, tuple[str, Role]] = {
    OURS: ("shardwright", "ours"),
    FAST: ("fast", "variant"),
    BEFORE: ("shardwright", "peer"),
    LOOP: ("loop", "peer"),
    ALONE: ("alone", "limit"),
}
USUAL_GPU, FASTER_GPU = "0.080", "0.042"  # seconds of the VAE for a megapixel; 0.008 for the others


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask with small pictures, then with large ones."""
    large = sizes.megapixels[-1]
    for case, pictures, gpu, names in (
        ({"images": sizes.derive, "encoders": "simulated GPU"}, images(folder, sizes.derive),
         USUAL_GPU, (OURS, LOOP, ALONE)),
        ({"images": sizes.large, "megapixels": large, "encoders": "simulated GPU of 20 images/s"},
         photographs(folder, sizes.large, large), FASTER_GPU, (OURS, FAST, BEFORE, ALONE)),
    ):  # fmt: skip
        contestants = [contestant(folder, name, pictures, gpu, "bucket") for name in names]
        yield Question(
            "derive",
            case,
            [one for one in contestants if one is not None],
            int(case["images"]),
            "images",
            partial(remove, folder / "out"),
        )


def contestant(folder: Path, name: str, pictures: Path, gpu: str, fit: str) -> Contestant | None:
    """Give one way to derive; None where the source of an earlier commit is not to be had."""
    way, role = WAYS[name]
    command: Command = [PYTHON, PEERS / "derive_all.py", pictures, folder / "out", way, gpu, fit]
    if name == BEFORE:
        earlier = source(folder, BEFORE.split()[-1])
        if earlier is None:
            return None
        command = ["env", f"PYTHONPATH={earlier}", *command]
    return Contestant(name, command, role, times_itself=True)
