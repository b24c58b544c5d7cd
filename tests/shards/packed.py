"""Small packed shards for tests of reading, and what must be in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from shardwright import pack
from tests.store.small import SIZES, Array, arrays, small_store

SUFFIXES = {"dinov3": "dinov3.npy", "vae": "vae.npy", "t5": "t5h.npy"}
MASK = np.array([1] * 6 + [0] * 71, np.uint8)
BUCKETS = ("64x64", "96x64")


def packed(root: Path, samples: int = 12, shard_size: int = 4) -> Path:
    """Pack samples ``img0``, ``img1``, ... of two buckets that take turns; give the folder."""
    store = small_store(root / "derived", samples)
    pack(derived_dir=store.root, output_dir=root / "shards", shard_size=shard_size, workers=1)
    return root / "shards"


def expected(image_id: str) -> dict[str, Array]:
    """Give the arrays of a sample, by member."""
    number = int(image_id.removeprefix("img"))
    made = arrays(*SIZES[number % 2], number)
    return {SUFFIXES[name]: array for name, array in made.items()} | {"t5m.npy": MASK}


def assert_sample(sample: dict[str, Any], image_id: str) -> None:
    """Fail unless a sample is exactly that of the store."""
    number = int(image_id.removeprefix("img"))
    assert sample["json"]["image_id"] == image_id
    assert sample["json"]["caption"] == f"a picture of {image_id}"
    assert sample["json"]["aspect_bucket"] == BUCKETS[number % 2]
    for name, array in expected(image_id).items():
        assert_same(sample[name], array)


def assert_same(found: Any, array: Array) -> None:  # noqa: ANN401 - whatever a loader gives
    """Fail unless dtype, shape and every value are the same."""
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def file_order(samples: int) -> list[str]:
    """Name the samples as they stand in the shards: bucket after bucket."""
    return [f"img{n}" for first in (0, 1) for n in range(first, samples, 2)]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write into a file without changing its size, and without the clock's leave."""
    state = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
