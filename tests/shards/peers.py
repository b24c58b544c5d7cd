"""Loaders of others, each in a process: ``python -m tests.shards.peers NAME OUT SHARDS...``.

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
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Samples = list[dict[str, Any]]

FOLDER = Path(sys.prefix, "peers")


def run(name: str, out: Path, *folders: Path) -> list[Samples]:
    """Read shards with a loader; give the samples of each folder."""
    ours = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "tests.shards.peers", name, str(out), *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": f"{FOLDER}{os.pathsep}{ours}"},
    )
    assert done.returncode == 0, done.stderr
    samples: list[Samples] = pickle.loads(out.read_bytes())
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
    names = fields(shards)  # arrays are tensors, some of which cannot be pickled
    return [{f: s[f] if f == "json" else np.asarray(s[f]) for f in names} for s in found]


def ray(shards: Path) -> Samples:
    # It would report to its makers, and put a password for clusters into the home folder.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import ray

    if not ray.is_initialized():  # it ends with the process
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    rows = ray.data.read_webdataset(tars(shards)).take_all()
    return [{field: row[field] for field in fields(shards)} for row in rows]


def wids(shards: Path) -> Samples:
    # It copies even local shards. Given as cache_dir=, it would know the copies by file name alone,
    # and take those of one bucket for those of another.
    os.environ["WIDS_CACHE"] = str(shards.parent / "wids")
    import wids

    dataset = wids.ShardListDataset(str(shards / ".wids.json"))
    found = [dataset[number] for number in range(len(dataset))]
    return [{field: sample[f".{field}"] for field in fields(shards)} for sample in found]


def dali(shards: Path) -> Samples:
    from nvidia.dali import Pipeline, fn

    indexes = sorted(map(str, shards.glob(".dali/bucket_*/*.idx")))
    names = fields(shards)
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        members = fn.readers.webdataset(
            paths=tars(shards),
            index_paths=indexes,
            ext=names,
            missing_component_behavior="error",
            name="shards",
        )
        pipeline.set_outputs(*members)
    pipeline.build()
    samples = []
    for _ in range(pipeline.epoch_size("shards")):
        found = [bytes(output.at(0)) for output in pipeline.run()]
        samples.append({f: decoded(f, data) for f, data in zip(names, found, strict=True)})
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


def fields(shards: Path) -> list[str]:
    """Name the members of the first sample."""
    with tarfile.open(tars(shards)[0]) as tar:
        split = [name.partition(".") for name in tar.getnames()]
    return [field for key, _, field in split if key == split[0][0]]


def decoded(field: str, data: bytes) -> Any:  # noqa: ANN401 - a dict or an array
    if field.endswith(".npy"):
        return np.load(io.BytesIO(data))
    return json.loads(data) if field == "json" else data


if __name__ == "__main__":
    _, name, out, *folders = sys.argv
    found = list(map((LOADERS | {"s3": s3})[name], map(Path, folders)))
    Path(out).write_bytes(pickle.dumps(found))
