"""Verifying every byte against a sequential read of the same files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, PYTHON, SHARDWRIGHT, Command, Contestant, Question, drop_caches
from benchmarks.stores import real_store

PEERS = Path(__file__).parent / "peers"


def questions(folder: Path, quick: bool) -> Iterator[Question]:
    """Ask warm and, where caches can be dropped, cold."""
    samples = 300 if quick else 3000
    store, shards = real_store(folder, samples), folder / f"shards-{samples}"
    if not shards.exists():
        command: Command = [*SHARDWRIGHT, "pack", "--derived-dir", store, "--output-dir", shards]
        subprocess.run(command, check=True, capture_output=True)
    contestants = [
        Contestant(OURS, [*SHARDWRIGHT, "verify", shards, "--read-data", "--workers", "2"]),
        Contestant("limit: sequential read", [PYTHON, PEERS / "sequential_read.py", shards, "2"]),
        Contestant("sha256sum", ["sh", "-c", f"sha256sum {shards}/bucket_*/*.tar"]),
    ]
    yield Question(f"verify {samples:,} samples, warm", contestants, samples, "samples")
    if drop_caches():
        name = f"verify {samples:,} samples, cold"
        yield Question(name, contestants, samples, "samples", drop_caches)
