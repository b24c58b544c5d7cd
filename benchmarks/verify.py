"""Verifying every byte against a sequential read of the same files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, SHARDWRIGHT, Command, Contestant, Question
from benchmarks.sizes import Sizes
from benchmarks.stores import cool, shard_set, warm

SEQUENTIAL = "sequential read"


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask warm and cold; ``sha256sum`` is what one would use instead, at the same speed in both."""
    shards = shard_set(folder, sizes.verify)
    verify: Command = [*SHARDWRIGHT, "verify", shards, "--read-data", "--workers", "2"]
    sha256 = f"find {shards} -name '*.tar' -print0 | xargs -0 -P 2 -n 4 sha256sum"
    contestants = [
        Contestant(OURS, verify, "ours"),
        Contestant("sha256sum", ["sh", "-c", sha256]),
        Contestant(SEQUENTIAL, [PYTHON, PEERS / "sequential_read.py", shards, "2"], "limit"),
    ]
    for cache, prepare in (("warm", warm), ("cold", cool))[: 1 + sizes.asides]:
        yield Question(
            "verify",
            {"samples": sizes.verify, "cache": cache, "workers": 2},
            contestants if cache == "warm" else [contestants[0], contestants[-1]],
            sizes.verify,
            "samples",
            partial(prepare, shards),
        )
