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
    yield Question(
        "derive",
        {"images": sizes.derive, "encoders": "simulated GPU"},
        contestants(folder, images(folder, sizes.derive), USUAL_GPU, OURS, LOOP, ALONE),
        sizes.derive,
        "images",
        partial(remove, folder / "out"),
    )
    pictures = photographs(folder, sizes.large, large)
    yield Question(
        "derive",
        {"images": sizes.large, "megapixels": large, "encoders": "simulated GPU of 20 images/s"},
        contestants(folder, pictures, FASTER_GPU, OURS, FAST, BEFORE, ALONE),
        sizes.large,
        "images",
        partial(remove, folder / "out"),
    )


def contestants(
    folder: Path, pictures: Path, gpu: str, *names: str, fit: str = "bucket"
) -> list[Contestant]:
    """Give some ways to derive; not that of an earlier commit where git does not have it."""
    found = []
    for name in names:
        way, role = WAYS[name]
        script = PEERS / "derive_all.py"
        command: Command = [PYTHON, script, pictures, folder / "out", way, gpu, fit]
        if name == BEFORE:
            if (earlier := source(folder, BEFORE.split()[-1])) is None:
                continue
            command = ["env", f"PYTHONPATH={earlier}", *command]
        found.append(Contestant(name, command, role, times_itself=True))
    return found
