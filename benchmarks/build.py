"""Images straight to shards, against derive and then pack; and against what cannot be saved.

With encoders that only sleep, as long as a GPU would work, what counts is that they never wait.
With sketch encoders and as many processes as cores, what counts is the work beside decoding and
encoding. Two devices that compute, on a core each, show how well work is shared out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Case, Command, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import images, remove, small_images

BOTH = "shardwright derive, then pack"
ALONE = "the encoders alone"
PURE = "decoding and encoding alone"
ONE = "one device"
# The way of peers/build_all.py, and its role.
WAYS: dict[str, tuple[str, Role]] = {
    OURS: ("build", "ours"),
    BOTH: ("derive and pack", "peer"),
    ALONE: ("encoders alone", "limit"),
    PURE: ("decode and encode", "limit"),
    ONE: ("build", "peer"),
}
_SMALL = 256  # pixels a side


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask with a simulated GPU, then with sketch at two sizes, then with two devices."""
    count, more, many = sizes.derive, 6 * sizes.derive, 40 * sizes.derive
    few, large = images(folder, count), images(folder, more)
    small = small_images(folder, many, _SMALL)
    simulated: Case = {"images": count, "encoders": "simulated GPU"}
    yield _question(folder, simulated, few, count, "simulated", OURS, BOTH, ALONE)
    for pictures, number, size in ((small, many, "256 pixels"), (large, more, "1 megapixel")):
        case: Case = {"images": number, "size": size, "encoders": "sketch on 2 cores"}
        fit = "original" if pictures == small else "bucket"
        yield _question(folder, case, pictures, number, "sketch", OURS, BOTH, PURE, fit=fit)
    fewer = small_images(folder, 4 * count, _SMALL)
    devices: Case = {"images": 4 * count, "encoders": "2 devices that compute on a core each"}
    yield _question(folder, devices, fewer, 4 * count, "computing", OURS, ONE, fit="original")


def _question(
    folder: Path,
    case: Case,
    pictures: Path,
    count: int,
    kind: str,
    *names: str,
    fit: str = "bucket",
) -> Question:
    contestants = []
    for name in names:
        way, role = WAYS[name]
        device = "cpu" if kind == "simulated" or name == ONE else "cpu:2"
        script, out = PEERS / "build_all.py", folder / "out"
        command: Command = ["env", f"PYTHONPATH={PEERS.parents[1]}", PYTHON, script]
        command += [pictures, out, way, kind, device, fit]
        contestants.append(Contestant(name, command, role, times_itself=True))
    return Question("build", case, contestants, count, "images", partial(remove, folder / "out"))
