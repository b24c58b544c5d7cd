"""Reading all arrays into batches from an S3 server on this machine: our reader and others.

The server is rclone's, which reads ranges straight from the files. It answers at once, as no real
store does: what is compared is the work of the readers, not how they hide that they wait.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.contest import OURS, PEERS, PYTHON, Command, Contestant, Question, Role
from benchmarks.sizes import Sizes
from benchmarks.stores import shard_set, warm

WEBDATASET, S3FS, DOWNLOADS = "webdataset, curl", "s3fs cat_ranges, by our index", "curl alone"
FILLED = f"{OURS}, cache full"
# The way of peers/remote_all.py, and its role.
WAYS: dict[str, tuple[str, Role]] = {
    OURS: ("ours", "ours"),
    f"{OURS}, cache empty": ("filling", "variant"),
    FILLED: ("filled", "variant"),
    f"{OURS} through s3fs": ("over s3fs", "variant"),
    WEBDATASET: ("webdataset", "peer"),
    S3FS: ("s3fs", "peer"),
    DOWNLOADS: ("downloads", "limit"),
}
_RCLONE = Path(sys.prefix, "servers/bin/rclone")
_S3FS = Path(sys.prefix, "peers")  # it does not stand beside our boto3


def questions(folder: Path, sizes: Sizes) -> Iterator[Question]:
    """Ask in the process itself and through a DataLoader with two workers."""
    shards = shard_set(folder, sizes.read)
    with _server(shards.parent) as server:
        for workers in (1, 2) if sizes.asides else (1,):
            yield Question(
                "remote",
                {"samples": sizes.read, "workers": workers},
                [
                    Contestant(
                        name, _command(way, server, shards, workers), role, times_itself=True
                    )
                    for name, (way, role) in WAYS.items()
                ],
                sizes.read,
                "samples",
                partial(_before, shards),
            )


def _command(way: str, server: str, shards: Path, workers: int) -> Command:
    environment = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
        "PYTHONPATH": str(_S3FS) if "s3fs" in way else "",
    }
    command: Command = ["env", *(f"{name}={value}" for name, value in environment.items())]
    script, cache = PEERS / "remote_all.py", shards.parent / "out"
    return [*command, PYTHON, script, f"s3://{shards.name}", cache, str(workers), way]


def _before(shards: Path) -> None:
    shutil.rmtree(shards.parent / "out/filling", ignore_errors=True)
    warm(shards)


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Serve folders as buckets."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    command: Command = [_RCLONE, "serve", "s3", "--addr", address, folder]
    process = subprocess.Popen(
        command,
        env=os.environ | {"RCLONE_CONFIG": os.devnull},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        host, port = address.split(":")
        while process.poll() is None:
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()
