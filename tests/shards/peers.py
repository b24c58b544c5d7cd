"""Loaders of others, each in a process: ``python -m tests.shards.peers NAME SHARDS OUT``.

They do not all stand beside what we test with (wids needs an old webdataset), so ``make test``
installs them into a folder of their own, which only such a process sees. It writes all samples as
its loader gives them.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Samples = list[dict[str, Any]]

FOLDER = Path(sys.prefix, "peers")
FIELDS = ["json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy"]


def run(name: str, shards: Path, out: Path) -> Samples:
    """Read shards with a loader; give its samples."""
    ours = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "tests.shards.peers", name, str(shards), str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": f"{FOLDER}{os.pathsep}{ours}"},
    )
    assert done.returncode == 0, done.stderr
    samples: Samples = pickle.loads(out.read_bytes())
    return samples


def energon(shards: Path) -> Samples:
    from megatron import energon

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
        cookers = [energon.Cooker(energon.stateless(lambda sample: dict(sample)))]  # noqa: RUF012

        def batch(self, samples: Any) -> Any:  # noqa: ANN401
            return samples

        def encode_batch(self, batch: Any) -> Any:  # noqa: ANN401
            return batch

    dataset = energon.get_train_dataset(
        str(shards),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    found = [sample for batch in energon.get_loader(dataset) for sample in batch]
    return [{field: sample[field] for field in FIELDS} for sample in found]


def ray(shards: Path) -> Samples:
    # It would report to its makers, and put a password for clusters into the home folder.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = ray.data.read_webdataset(tars(shards)).take_all()
    finally:
        ray.shutdown()
    return [{field: row[field] for field in FIELDS} for row in rows]


def wids(shards: Path) -> Samples:
    # It copies even local shards. Given as cache_dir=, it would know the copies by file name alone,
    # and take those of one bucket for those of another.
    os.environ["WIDS_CACHE"] = str(shards.parent / "wids")
    import wids

    dataset = wids.ShardListDataset(str(shards / ".wids.json"))
    found = [dataset[number] for number in range(len(dataset))]
    return [{field: sample[f".{field}"] for field in FIELDS} for sample in found]


def dali(shards: Path) -> Samples:
    from nvidia.dali import Pipeline, fn

    indexes = sorted(map(str, shards.glob(".dali/bucket_*/*.idx")))
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        members = fn.readers.webdataset(
            paths=tars(shards),
            index_paths=indexes,
            ext=FIELDS,
            missing_component_behavior="error",
            name="shards",
        )
        pipeline.set_outputs(*members)
    pipeline.build()
    samples = []
    for _ in range(pipeline.epoch_size("shards")):
        found = [bytes(output.at(0)) for output in pipeline.run()]
        samples.append({f: decoded(f, data) for f, data in zip(FIELDS, found, strict=True)})
    return samples


def webshart(shards: Path) -> Samples:
    import webshart

    found: dict[str, dict[str, Any]] = {}
    for bucket in sorted(shards.glob("bucket_*")):  # it does not look into folders
        for entry in webshart.TarDataLoader(webshart.discover_dataset(str(bucket))):
            key, _, field = entry.path.partition(".")
            found.setdefault(key, {})[field] = decoded(field, bytes(entry.data))
    return list(found.values())


def s3(shards: Path) -> Samples:
    """Read with our own reader, from a server that speaks S3."""
    import s3fs
    from moto.server import ThreadedMotoServer

    import shardwright

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    system = s3fs.S3FileSystem(**options)
    system.mkdir("ours")
    system.put(str(shards), "ours/shards", recursive=True)
    samples = list(shardwright.open("s3://ours/shards", storage_options=options))
    server.stop()
    return samples


# By the folder each is installed in.
LOADERS: dict[str, Callable[[Path], Samples]] = {
    "megatron/energon": energon,
    "nvidia/dali": dali,
    "ray": ray,
    "webshart": webshart,
    "wids": wids,
}


def tars(shards: Path) -> list[str]:
    return sorted(map(str, shards.glob("bucket_*/*.tar")))


def decoded(field: str, data: bytes) -> Any:  # noqa: ANN401 - a dict or an array
    return np.load(io.BytesIO(data)) if field.endswith(".npy") else json.loads(data)


if __name__ == "__main__":
    _, name, shards, out = sys.argv
    Path(out).write_bytes(pickle.dumps((LOADERS | {"s3": s3})[name](Path(shards))))
