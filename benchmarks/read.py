"""Reading all arrays into batches: our reader, and what people use now, on the same samples."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Command, Contestant, Question, drop_caches
from benchmarks.stores import real_store

PEER = Path(__file__).parent / "peers" / "read_all.py"
WAYS = {
    OURS: ("shardwright", "numpy"),
    "webdataset": ("webdataset", "webdataset"),
    "Hugging Face, a part, scaled": ("huggingface", "datasets"),
    "loose .npy files": ("loose", "numpy"),
    "limit: sequential read": ("sequential", "numpy"),
}


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask with one and two processes, warm and, where caches can be dropped, cold."""
    samples = 600 if quick else 3000
    store, shards = real_store(folder, samples), folder / f"shards-{samples}"
    if not shards.exists():
        command: Command = [*SHARDWRIGHT, "pack", "--derived-dir", store, "--output-dir", shards]
        subprocess.run([*command, "--shard-size", "100"], check=True, capture_output=True)
    every_file = f"cat {shards}/*/*.tar {store}/*/*.npy > /dev/null"

    def warm() -> None:  # each time, as a system may take pages back while others run
        subprocess.run(every_file, shell=True, check=True)

    for workers in (1, 2):
        contestants = [
            Contestant(name, [PYTHON, PEER, way, shards, store, str(workers)], times_itself=True)
            for name, (way, module) in WAYS.items()
            if find_spec(module)
        ]
        title = f"read {samples:,} samples into batches, {workers} worker{'s'[: workers - 1]}"
        yield Question(f"{title}, warm", contestants, samples, "samples", warm)
        if drop_caches():
            yield Question(f"{title}, cold", contestants, samples, "samples", drop_caches)
