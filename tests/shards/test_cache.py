"""The cache of shards at a URL: never wrong bytes, never too large, shared by processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.storage.cache import BLOCK
from shardwright.storage.urls import Url
from tests.durability.soak import SOAK
from tests.shards.packed import packed
from tests.shards.uploaded import assert_same_batches, remove_shards, upload, wait_until
from tests.shards.webserver import serving

pytest.importorskip("boto3")

SAMPLES = 24
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


@pytest.fixture
def url(shards: Path, bucket: Url) -> str:
    return upload(shards, bucket / "shards")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "a new folder/cache"


def read(url: str, shards: Path, cache: Path, size: int | str = "1GB") -> None:
    """Read two epochs through the cache and compare them with the shards."""
    remote, local = (
        shardwright.open(url, cache_dir=cache, cache_size=size),
        shardwright.open(shards),
    )
    for epoch in range(2):
        assert_same_batches(remote.batches(3, epoch=epoch), local.batches(3, epoch=epoch))
    assert not remote[0]["vae.npy"].flags.writeable


def used(cache: Path) -> int:
    """Count the bytes that the limit is for: of what is kept, not of the file that counts it."""
    return sum(path.stat().st_blocks * 512 for path in cache.glob("*.blocks"))


def holds(cache: Path, least: int) -> bool:
    return cache.exists() and used(cache) >= least


def segments(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.blocks"))


def test_what_was_read_once_is_not_fetched_again(url: str, shards: Path, cache: Path) -> None:
    read(url, shards, cache)
    remove_shards(Url(url))
    read(url, shards, cache)
    assert len(segments(cache)) == len(list(shards.glob("bucket_*/*.tar")))
    assert used(cache) < 1.1 * sum(path.stat().st_size for path in shards.glob("bucket_*/*.tar"))


def test_parts_of_samples_fill_the_cache_block_by_block(shards: Path, cache: Path) -> None:
    pytest.importorskip("aiohttp")
    with serving(shards) as server:
        dataset = shardwright.open(server.url, cache_dir=cache, cache_size="1GB")
        server.served.clear()
        vectors = dataset.fields("json", "dinov3.npy")
        for _ in range(2):
            assert_same_batches(
                vectors.batches(3), shardwright.open(shards).fields("json", "dinov3.npy").batches(3)
            )
        blocks = sum(-(-path.stat().st_size // BLOCK) for path in shards.glob("bucket_*/*.tar"))
        assert sum(size for _, size in server.served) <= 3 * SAMPLES * BLOCK
        fetched = len(server.served)
        assert fetched < 2 * SAMPLES <= 2 * blocks
        read(server.url, shards, cache)
        assert sum(size for _, size in server.served[fetched:]) <= blocks * BLOCK


def test_a_cache_that_is_too_small_keeps_what_fits_and_loses_nothing(
    shards: Path, cache: Path
) -> None:
    pytest.importorskip("aiohttp")
    size = sum(path.stat().st_size for path in shards.glob("bucket_*/*.tar")) // 2
    with serving(shards) as server:
        remote = shardwright.open(server.url, cache_dir=cache, cache_size=size)
        list(remote.batches(1))
        server.served.clear()
        list(remote.batches(1, epoch=1))
        fetched = sum(length for name, length in server.served if name.endswith(".tar"))
        assert fetched < 1.4 * size  # blocks at the ends of a sample are fetched with it
        assert size / 2 < used(cache) <= size
    with serving(shards) as another:
        read(another.url, shards, cache, size)
        assert size / 2 < used(cache) <= size


@pytest.mark.parametrize("size", [0, 5 * BLOCK])
def test_a_tiny_cache_changes_nothing(url: str, shards: Path, cache: Path, size: int) -> None:
    read(url, shards, cache, size)
    read(url, shards, cache, size)
    assert used(cache) <= max(size, 4096)


def test_the_oldest_use_makes_room_for_other_shards(shards: Path, bucket: Url, cache: Path) -> None:
    size = int(1.25 * sum(path.stat().st_size for path in shards.glob("bucket_*/*.tar")))
    first, second = (upload(shards, bucket / name) for name in ("first", "second"))
    read(first, shards, cache, size)
    old = segments(cache)
    for age, path in enumerate(old):
        os.utime(path, (0, 10**9 - age))
    read(second, shards, cache, size)
    assert 0 < len(set(old) & set(segments(cache))) < len(old)
    assert set(old) & set(segments(cache)) <= set(old[: len(old) // 2])
    assert used(cache) <= size
    remove_shards(bucket / "second")
    read(second, shards, cache, size)


def damaged(number: int, contents: list[bytes]) -> bytes:
    """Damage a file of the cache, each in another way."""
    data, draw = contents[number], random.Random(number)
    at = draw.randrange(4096, len(data))
    return (
        data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        data[: draw.randrange(len(data))],
        data[:4096] + bytes(len(data) - 4096),
        contents[number - 1],  # that of another shard
        draw.randbytes(4096) + data[4096:],
        b"",
    )[number]


def test_damage_in_the_cache_is_found_and_fetched_again(
    url: str, shards: Path, cache: Path
) -> None:
    read(url, shards, cache)
    found = segments(cache)
    assert len(found) == 6
    contents = [path.read_bytes() for path in found]
    for number, path in enumerate(found):
        path.write_bytes(damaged(number, contents))
    read(url, shards, cache)
    remove_shards(Url(url))
    read(url, shards, cache)


def test_processes_fill_one_cache_at_once(url: str, shards: Path, cache: Path) -> None:
    with SPAWN.Pool(2) as pool:
        pool.starmap(read, [(url, shards, cache)] * 2)
    remove_shards(Url(url))
    read(url, shards, cache)


def forever(*given: Any) -> None:  # noqa: ANN401
    while True:
        read(*given)


def test_a_reader_that_is_killed_leaves_nothing_wrong(url: str, shards: Path, cache: Path) -> None:
    for seed in range(max(2, SOAK)):
        process = SPAWN.Process(target=forever, args=(url, shards, cache, 10**9))
        process.start()
        least = random.Random(seed).randrange(1, 40) * BLOCK
        wait_until(partial(holds, cache, least))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        read(url, shards, cache)
        for path in segments(cache)[seed % 2 :]:
            path.unlink()
    read(url, shards, cache)


def little_room(url: str, shards: Path, cache: Path) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shardwright").addHandler(handler)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    read(url, shards, cache)
    return said


def test_a_disk_that_takes_no_more_is_reported_once_and_reading_goes_on(
    url: str, shards: Path, cache: Path
) -> None:
    with SPAWN.Pool(1) as pool:
        (said,) = pool.apply(little_room, (url, shards, cache))
    assert said.startswith(f"{cache}: ")
    assert said.endswith("; nothing is added to the cache any more")
    read(url, shards, cache)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cache_dir": "x"}, "cache_dir and cache_size belong together"),
        ({"cache_size": 5}, "cache_dir and cache_size belong together"),
        ({"cache_dir": "x", "cache_size": "much"}, "cache_size is 'much'"),
        ({"cache_dir": "x", "cache_size": -1}, "cache_size is -1"),
        ({"cache_dir": "x", "cache_size": 5}, "cache_dir is for shards at a URL"),
    ],
)
def test_a_cache_needs_a_folder_a_size_and_a_url(
    shards: Path, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    if "cache_dir" in given:
        given = given | {"cache_dir": tmp_path / "x"}
    with pytest.raises(shardwright.UsageError, match=message):
        shardwright.open(shards, **given)
