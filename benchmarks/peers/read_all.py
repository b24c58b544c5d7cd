"""Read every array of a shard set into batches of one bucket, by one way and some processes.

Prints the seconds from when all processes are ready, so that importing a library does not count.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 16
Batch = dict[str, Any]


def stack(samples: list[dict[str, Any]]) -> Batch:
    names = [name for name in samples[0] if name.endswith(".npy")]
    return {name: np.stack([sample[name] for sample in samples]) for name in names}


def tars(shards: Path, worker: int, workers: int) -> Iterator[list[str]]:
    """Give the worker's shards of each bucket."""
    for folder in sorted(shards.glob("bucket_*")):
        yield sorted(map(str, folder.glob("*.tar")))[worker::workers]


def shardwright(shards: Path, store: Path, worker: int, workers: int) -> Iterator[Batch]:
    import shardwright

    dataset = shardwright.open(shards)
    yield from dataset.batches(BATCH, rank=worker, world_size=workers, drop_last=False)


def webdataset(shards: Path, store: Path, worker: int, workers: int) -> Iterator[Batch]:
    import webdataset as wds

    for urls in tars(shards, worker, workers):
        dataset = wds.WebDataset(urls, shardshuffle=False).decode()
        yield from dataset.batched(BATCH, collation_fn=stack)


def huggingface(shards: Path, store: Path, worker: int, workers: int) -> Iterator[Batch]:
    from datasets import load_dataset

    for urls in tars(shards, worker, workers):  # the first only, for it takes a minute for all
        dataset = load_dataset("webdataset", data_files=urls[:1], split="train", streaming=True)
        yield from dataset.with_format("numpy").iter(BATCH)


def loose(shards: Path, store: Path, worker: int, workers: int) -> Iterator[Batch]:
    from shardwright.schema import COMPONENTS, JSONL_NAME

    buckets: dict[str, list[Any]] = {}
    for line in (store / JSONL_NAME).open():
        record = json.loads(line)
        buckets.setdefault(record["aspect_bucket"], []).append(record)
    for records in buckets.values():
        mine = iter(records[worker::workers])
        while some := list(islice(mine, BATCH)):
            samples = []
            for record in some:
                name = f"{record['image_id']}.npy"
                sample = {c.suffix: np.load(store / c.folder / name) for c in COMPONENTS}
                sample["t5m.npy"] = np.array(record["t5_attention_mask"], np.uint8)
                samples.append(sample)
            yield stack(samples)


def sequential(shards: Path, store: Path, worker: int, workers: int) -> Iterator[Batch]:
    """Read the shards from end to end and make nothing of them."""
    buffer = bytearray(1 << 22)
    for paths in tars(shards, worker, workers):
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    yield from ()


WAYS = {
    "shardwright": (shardwright, "shardwright.shards.reader"),
    "webdataset": (webdataset, "webdataset"),
    "huggingface": (huggingface, "datasets"),
    "loose": (loose, "shardwright.schema"),
    "sequential": (sequential, "os"),
}


def work(ready: Any, counts: Any, way: str, *arguments: Any) -> None:  # noqa: ANN401
    ready.wait()
    function, _ = WAYS[way]
    counts.put(sum(len(batch["vae.npy"]) for batch in function(*arguments)))


def main() -> None:
    way, shards, store, workers = sys.argv[1], *map(Path, sys.argv[2:4]), int(sys.argv[4])
    __import__(WAYS[way][1])
    context = multiprocessing.get_context("fork")
    ready, counts = context.Barrier(workers + 1), context.SimpleQueue()
    processes = [
        context.Process(target=work, args=(ready, counts, way, shards, store, n, workers))
        for n in range(workers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    samples = sum(counts.get() for _ in processes)
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    with open(store / "approved_image_dataset.jsonl") as file:
        expected = sum(1 for _ in file)
    assert way in ("sequential", "huggingface") or samples == expected, (samples, expected)
    print(seconds * expected / samples if samples else seconds)


if __name__ == "__main__":
    main()
