"""Read every array of a shard set into batches of one bucket, by one way.

One worker is this very process; two are those of a torch DataLoader, as in training. Prints the
seconds of the epoch, from opening the data on; importing libraries does not count.
"""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 16
Batch = dict[str, Any]

shards, store, workers, way = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def stack(samples: list[dict[str, Any]]) -> Batch:
    names = [name for name in samples[0] if name.endswith(".npy")]
    return {name: np.stack([sample[name] for sample in samples]) for name in names}


def tars(worker: int) -> Iterator[list[str]]:
    """Give the worker's shards of each bucket."""
    for folder in sorted(shards.glob("bucket_*")):
        yield sorted(map(str, folder.glob("*.tar")))[worker::workers]


def webdataset(worker: int) -> Iterator[Batch]:
    import webdataset as wds

    for urls in filter(None, tars(worker)):
        dataset = wds.WebDataset(urls, shardshuffle=False, workersplitter=None).decode()
        yield from dataset.batched(BATCH, collation_fn=stack)


def huggingface(worker: int) -> Iterator[Batch]:
    from datasets import load_dataset

    urls = next(tars(worker))[:1]  # one shard, for all would take too long
    if urls:
        dataset = load_dataset("webdataset", data_files=urls, split="train", streaming=True)
        for batch in dataset.with_format("numpy").iter(BATCH):
            yield {name: np.stack(value) for name, value in batch.items() if ".npy" in name}


def loose(worker: int) -> Iterator[Batch]:
    from shardwright.layout import JSONL_NAME
    from shardwright.recipes import SPECIFICATION

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
                sample = {
                    c.suffix: np.load(store / c.folder / name) for c in SPECIFICATION.components
                }
                sample["t5m.npy"] = np.array(record["t5_attention_mask"], np.uint8)
                samples.append(sample)
            yield stack(samples)


def shardwright(worker: int) -> Iterator[Batch]:
    import shardwright

    yield from shardwright.open(shards).batches(BATCH, drop_last=False)


def sequential(worker: int) -> int:
    """Read the worker's shards from end to end and make nothing of them."""
    buffer = bytearray(1 << 22)
    for paths in tars(worker):
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return 0


def loader() -> Any:  # noqa: ANN401
    """Give what reads in two workers and hands the batches to this process."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    if way == "shardwright":
        import shardwright

        batches = shardwright.open(shards).batches(BATCH, drop_last=False)
        return DataLoader(batches.torch(), batch_size=None, num_workers=workers)

    class Batches(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Batch]:
            return WAYS[way](get_worker_info().id)

    return DataLoader(Batches(), batch_size=None, num_workers=workers)


WAYS = {
    "shardwright": shardwright,
    "webdataset": webdataset,
    "huggingface": huggingface,
    "loose": loose,
}
LIBRARY = {
    "shardwright": "shardwright.shards.reader.dataset",
    "webdataset": "webdataset",
    "huggingface": "datasets",
    "loose": "shardwright.recipes",
}


def epoch() -> list[tuple[float, int]]:
    """Read everything; give the time after each batch, and the samples until then."""
    if way == "sequential":
        if workers == 1:
            sequential(0)
        else:
            with ProcessPoolExecutor(workers) as pool:
                list(pool.map(sequential, range(workers)))
        return [(time.perf_counter(), expected)]
    batches, samples, times = WAYS[way](0) if workers == 1 else loader(), 0, []
    for batch in batches:
        samples += len(batch["vae.npy"])
        times.append((time.perf_counter(), samples))
    return times


if __name__ == "__main__":
    if way in LIBRARY:
        __import__(LIBRARY[way])
        if workers > 1:
            __import__("torch.utils.data")
    with open(store / "approved_image_dataset.jsonl") as file:
        expected = sum(1 for _ in file)
    began = time.perf_counter()
    times = epoch()
    last, samples = times[-1]
    seconds = last - began
    if way == "huggingface":  # opening counts as it is, and only what comes after it is scaled
        first, some = times[0]
        seconds = first - began + (last - first) * (expected - some) / max(samples - some, 1)
    else:
        assert samples == expected, (samples, expected)
    print(json.dumps({"seconds": round(seconds, 4)}))
