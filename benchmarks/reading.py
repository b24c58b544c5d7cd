"""What it costs to read a picture: decode it, fit it to its bucket, and make the input of DINOv3.

The pictures are JPEGs with as much detail as photographs. One worker is a loop; two are the
processes of derive, and threads for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.contest import BEFORE, FAST, OURS, PEERS, PYTHON, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import photographs, warm

# By name: the way, its role, and the library that it needs.
WAYS: dict[str, tuple[str, Role, str]] = {
    OURS: ("exact", "ours", "shardwright"),
    FAST: ("fast", "variant", "shardwright"),
    BEFORE: ("before", "peer", "PIL"),
    "Pillow draft": ("draft", "peer", "PIL"),
    "simplejpeg": ("simplejpeg", "peer", "simplejpeg"),
    "pyvips": ("pyvips", "peer", "pyvips"),
    "OpenCV reduced": ("opencv", "peer", "cv2"),
}


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask at each size, with one worker and with two."""
    for megapixels in sizes.megapixels:
        source = photographs(folder, sizes.reading, megapixels)
        for workers in (1, 2):
            yield Question(
                "reading",
                {"images": sizes.reading, "megapixels": megapixels, "workers": workers},
                [
                    Contestant(
                        name,
                        [PYTHON, PEERS / "reading_all.py", source, way, str(workers)],
                        role,
                        times_itself=True,
                    )
                    for name, (way, role, library) in WAYS.items()
                    if find_spec(library)
                ],
                sizes.reading,
                "images",
                partial(warm, source),
            )
