"""Read every array of a shard set at an S3 server into batches of one bucket, by one way.

One worker is this very process; two are those of a torch DataLoader, as in training. Prints the
seconds of the epoch, from opening the data on; importing libraries does not count.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardwright

BATCH = 16
Batch = dict[str, Any]

url, cache, workers, way = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def stack(samples: list[dict[str, Any]]) -> Batch:
    names = [name for name in samples[0] if name.endswith(".npy")]
    return {name: np.stack([sample[name] for sample in samples]) for name in names}


def opened() -> shardwright.Dataset:
    if way == "over s3fs":
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        return shardwright.open(url, storage_options=options)
    if way in ("filling", "filled"):
        return shardwright.open(url, cache_dir=cache / way, cache_size="100GB")
    return shardwright.open(url)


def tars() -> list[str]:
    """Give the URLs of the shards by HTTP, bucket after bucket."""
    catalog = shardwright.open(url)._view.catalog
    server = f"{os.environ['AWS_ENDPOINT_URL']}/{url.removeprefix('s3://')}"
    return [f"{server}/{shard.path}" for shard in catalog.shards]


def webdataset(worker: int) -> Iterator[Batch]:
    """Stream the shards through curl, in their order."""
    import webdataset as wds

    buckets: dict[str, list[str]] = {}
    for tar in tars():
        buckets.setdefault(tar.split("/")[-2], []).append(f"pipe:curl -sf {tar}")
    for pipes in filter(None, (found[worker::workers] for found in buckets.values())):
        dataset = wds.WebDataset(pipes, shardshuffle=False, workersplitter=None).decode()
        yield from dataset.batched(BATCH, collation_fn=stack)


def s3fs(worker: int) -> Iterator[Batch]:
    """Fetch the ranges of a shuffled batch together, by our index."""
    import s3fs

    system = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    catalog = shardwright.open(url)._view.catalog
    arrays = [n for n, name in enumerate(catalog.members) if name.endswith(".npy")]
    everything = np.random.default_rng(0).permutation(len(catalog.places))
    for numbers in catalog.by_bucket(everything).values():
        batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        for batch in batches[worker::workers]:
            places = catalog.places[batch]
            paths = [f"{url}/{catalog.shard_of(int(number)).path}" for number in batch]
            starts, ends = places[:, 0, 0], places[:, -1].sum(axis=1)
            found = system.cat_ranges(paths, starts.tolist(), ends.tolist())
            samples = []
            for data, start, members in zip(found, starts, places, strict=True):
                cut = {
                    n: data[at - start : at - start + size] for n, (at, size) in enumerate(members)
                }
                samples.append({catalog.members[n]: np.load(io.BytesIO(cut[n])) for n in arrays})
            yield stack(samples)


def ours(worker: int) -> Iterator[Batch]:
    yield from opened().batches(BATCH, drop_last=False)


def loader() -> Any:  # noqa: ANN401
    """Give what reads in two workers and hands the batches to this process."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    if way in PEERS:

        class Batches(IterableDataset):  # type: ignore[misc]
            def __iter__(self) -> Iterator[Batch]:
                return PEERS[way](get_worker_info().id)

        return DataLoader(Batches(), batch_size=None, num_workers=workers)
    batches = opened().batches(BATCH, drop_last=False).torch()
    return DataLoader(batches, batch_size=None, num_workers=workers)


def downloads() -> int:
    """Fetch the shards from end to end and make nothing of them."""
    found = tars()
    parts = [found[worker::workers] for worker in range(workers)]
    begun = [subprocess.Popen(["curl", "-sf", *part], stdout=subprocess.DEVNULL) for part in parts]
    assert all(process.wait() == 0 for process in begun)
    return expected


PEERS = {"webdataset": webdataset, "s3fs": s3fs}
LIBRARIES = {"webdataset": "webdataset", "s3fs": "s3fs", "over s3fs": "s3fs"}


def epoch() -> int:
    """Read everything; count the samples."""
    if way == "downloads":
        return downloads()
    batches = PEERS.get(way, ours)(0) if workers == 1 else loader()
    return sum(len(batch["vae.npy"]) for batch in batches)


if __name__ == "__main__":
    for library in ("boto3", "torch.utils.data", LIBRARIES.get(way, "boto3")):
        __import__(library)
    expected = len(shardwright.open(url))
    if way == "filled" and not (cache / way).exists():
        epoch()
    began = time.perf_counter()
    samples = epoch()
    seconds = time.perf_counter() - began
    assert samples == expected, (samples, expected)
    print(json.dumps({"seconds": round(seconds, 4)}))
