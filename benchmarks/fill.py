"""How full the batches are when the pictures have many sizes.

A batch has room for 8 pictures of one size. What is counted are the calls of the VAE's encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.contest import BEFORE, OURS, Question
from benchmarks.derive import contestants
from benchmarks.sizes import Sizes
from benchmarks.stores import mixed, remove

GPU = "0.010"  # seconds for a megapixel: so fast that reading takes longer


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask with pictures that keep their size, and with pictures that get that of their bucket."""
    pictures = mixed(folder, sizes.fill)
    for fit in ("original", "bucket"):
        found = contestants(folder, pictures, GPU, OURS, BEFORE, fit=fit)
        yield Question(
            "fill",
            {"images": sizes.fill, "fit": f"fit {fit}"},
            [replace(one, rounds=1) for one in found],
            sizes.fill,
            "images",
            partial(remove, folder / "out"),
        )
