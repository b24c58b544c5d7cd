"""Shards at an object store, for tests of reading."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.storage.urls import Url


def upload(shards: Path, folder: Url) -> str:
    """Copy a shard folder to an object store; give its URL."""
    for path in sorted(shards.rglob("*")):
        if path.is_file():
            (folder / str(path.relative_to(shards))).write(path.read_bytes())
    return str(folder)


def remove_shards(folder: Url) -> None:
    """Leave only the manifest and the indexes."""
    for name, _ in list(folder.walk()):
        if name.endswith(".tar"):
            (folder / name).remove()


def assert_same_batches(found: Any, wanted: Any) -> None:  # noqa: ANN401 - anything that gives them
    """Fail unless batches are the same to the last value."""
    for here, there in zip(found, wanted, strict=True):
        assert here["image_id"] == there["image_id"]
        for name in (name for name in there if name.endswith(".npy")):
            np.testing.assert_array_equal(np.asarray(here[name]), there[name])


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that happens in the background; the test's timeout ends it."""
    while not condition():
        time.sleep(0.01)
