"""Reading all arrays into batches: our reader, and what people use now, on the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Command, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import cool, real_store, shard_set, warm

WEBDATASET, LOOSE, SEQUENTIAL = "webdataset", "loose .npy files", "sequential read"
HUGGING_FACE = "Hugging Face datasets (reckoned from one shard)"
WAYS: dict[str, tuple[str, Role]] = {
    OURS: ("shardwright", "ours"),
    WEBDATASET: ("webdataset", "peer"),
    HUGGING_FACE: ("huggingface", "peer"),
    LOOSE: ("loose", "peer"),
    SEQUENTIAL: ("sequential", "limit"),
}


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask in the process itself and through a DataLoader with two workers, warm and cold.

    Hugging Face's loader is asked once: it is too slow for a disk or a worker to matter.
    """
    store, shards = real_store(folder, sizes.read), shard_set(folder, sizes.read)
    asides = [(1, "cold"), (2, "warm"), (2, "cold")] if sizes.asides else []
    for workers, cache in [(1, "warm"), *asides]:
        command: Command = [PYTHON, PEERS / "read_all.py", shards, store, str(workers)]
        yield Question(
            "read",
            {"samples": sizes.read, "cache": cache, "workers": workers},
            [
                Contestant(name, [*command, way], role, times_itself=True)
                for name, (way, role) in WAYS.items()
                if name != HUGGING_FACE or (workers, cache) == (1, "warm")
            ],
            sizes.read,
            "samples",
            partial(warm if cache == "warm" else cool, store, shards),
        )
