"""Shards at S3, read for training: in this process and others, ahead of the loop, with faults."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.storage import ahead, objects, urls
from shardwright.storage.urls import Url
from tests.flaky import Flaky, flaky
from tests.servers import use_s3
from tests.shards.packed import assert_sample, file_order, packed
from tests.shards.uploaded import assert_same_batches, upload, wait_until

pytest.importorskip("boto3")

SAMPLES = 24
A_SHARD = 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES, A_SHARD)


@pytest.fixture
def proxy(
    shards: Path, bucket: Url, moto: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Flaky, str]]:
    """A server that notes requests, and the URL of shards at it."""
    url = upload(shards, bucket / "shards")
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    with flaky(moto) as server:
        use_s3(monkeypatch, server.url)
        yield server, url
        urls._store.cache_clear()


def ranges(server: Flaky) -> list[str]:
    return [request for request in server.requests if request.endswith(".tar")]


def wait_for(server: Flaky, count: int) -> None:
    """Wait until so many ranges were asked for; more is a failure."""
    wait_until(lambda: len(ranges(server)) >= min(count, SAMPLES))
    assert len(ranges(server)) == min(count, SAMPLES)


def keys(dataset: Any) -> list[str]:  # noqa: ANN401 - a dataset
    return [sample["__key__"] for sample in dataset]


def test_s3_gives_the_samples_of_a_local_folder(shards: Path, bucket: Url) -> None:
    dataset = shardwright.open(upload(shards, bucket / "a folder/shards"))
    for sample, image_id in zip(dataset, file_order(SAMPLES), strict=True):
        assert_sample(sample, image_id)
        assert not sample["vae.npy"].flags.writeable
    assert_sample(dataset.by_id("img7"), "img7")


def test_a_bucket_that_is_not_there_and_a_folder_without_shards_are_named(bucket: Url) -> None:
    with pytest.raises(shardwright.StorageError, match=r"s3://no-such-bucket/.*NoSuchBucket"):
        shardwright.open("s3://no-such-bucket/shards")
    with pytest.raises(shardwright.InputMissingError, match=r"so copy \.shardwright along"):
        shardwright.open(f"{bucket}/nothing")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_s3_connections_in_use_are_not_taken_to_another_process(
    shards: Path, bucket: Url, method: str
) -> None:
    dataset = shardwright.open(upload(shards, bucket))
    halfway = iter(dataset)
    assert next(halfway)["__key__"] == file_order(SAMPLES)[0]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(keys, [dataset] * 2) == [file_order(SAMPLES)] * 2
    assert keys(halfway) == file_order(SAMPLES)[1:]


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize(
    ("method", "cache_size"), [("fork", None), ("fork", "1GB"), ("spawn", "1GB")]
)
def test_workers_of_a_loader_read_from_s3(
    shards: Path, bucket: Url, tmp_path: Path, method: str, cache_size: str | None
) -> None:
    torch = pytest.importorskip("torch")
    wanted = list(shardwright.open(shards).batches(3, seed=4))
    cache_dir = tmp_path if cache_size else None
    dataset = shardwright.open(upload(shards, bucket), cache_dir=cache_dir, cache_size=cache_size)
    halfway = iter(dataset.batches(3, seed=4))
    assert_same_batches([next(halfway)], wanted[:1])
    loader = torch.utils.data.DataLoader(
        dataset.batches(3, seed=4).torch(),
        batch_size=None,
        num_workers=2 if method == "fork" else 1,  # importing torch takes longer than the rest
        multiprocessing_context=method,
    )
    assert_same_batches(loader, wanted)
    assert_same_batches(halfway, wanted[1:])


def test_the_next_batches_are_fetched_while_the_loop_is_busy(
    shards: Path, proxy: tuple[Flaky, str]
) -> None:
    server, url = proxy
    local = list(shardwright.open(shards).batches(1, seed=1))
    batches = iter(shardwright.open(url).batches(1, seed=1))
    for taken in range(SAMPLES):
        batch = next(batches)
        assert_same_batches([batch], local[taken : taken + 1])
        wait_for(server, taken + 9)


def test_no_more_is_fetched_ahead_than_fits_into_memory(
    proxy: tuple[Flaky, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = proxy
    monkeypatch.setattr(ahead, "AHEAD_BYTES", 3 * 180_000)  # a sample is a little less
    batches = iter(shardwright.open(url).batches(1, seed=1))
    for taken in range(1, SAMPLES + 1):
        next(batches)
        wait_for(server, taken + 3)


def test_a_loop_that_ends_early_leaves_room_for_the_next(
    shards: Path, proxy: tuple[Flaky, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = proxy
    monkeypatch.setattr(ahead, "AHEAD_BYTES", 3 * 180_000)
    dataset = shardwright.open(url)
    for seed in range(4):
        next(iter(dataset.batches(1, seed=seed)))
    before = len(ranges(server))
    batches = iter(dataset.batches(1, seed=1))
    first = next(batches)
    wait_until(lambda: len(ranges(server)) >= before + 4)
    assert_same_batches([first, *batches], shardwright.open(shards).batches(1, seed=1))


def test_a_shard_that_is_gone_is_an_error_only_where_it_is_used(shards: Path, bucket: Url) -> None:
    dataset = shardwright.open(upload(shards, bucket))
    (bucket / "bucket_64x64/shard-000001.tar").remove()
    gone = set(file_order(SAMPLES)[A_SHARD : 2 * A_SHARD])
    local = [batch["image_id"][0] for batch in shardwright.open(shards).batches(1, seed=3)]
    batches = iter(dataset.batches(1, seed=3))
    for image_id in local[: min(map(local.index, gone))]:
        assert next(batches)["image_id"] == [image_id]
    with pytest.raises(shardwright.InputMissingError, match=r"64x64/shard-000001\.tar: is missing"):
        next(batches)


def test_s3_faults_that_pass_are_not_noticed(
    shards: Path, proxy: tuple[Flaky, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, url = proxy
    for at, how in enumerate(("500", "503", "reset", "truncated", "slow"), 1):
        server.fail(at * 3, how)  # type: ignore[arg-type]
    dataset = shardwright.open(url)
    assert_same_batches(dataset.batches(3), shardwright.open(shards).batches(3))
    assert len(server.failed) == 5
    assert len([r for r in caplog.records if "trying again" in r.getMessage()]) == 4


def test_s3_faults_that_stay_are_an_error_that_names_the_shard(
    proxy: tuple[Flaky, str],
) -> None:
    server, url = proxy
    dataset = shardwright.open(url)
    server.fail(1, "503", 1000)
    with pytest.raises(shardwright.StorageError, match=r"shard-\d+\.tar: .*503.*tries"):
        list(dataset.batches(3))
