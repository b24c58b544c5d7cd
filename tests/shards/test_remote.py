"""Shards behind an fsspec URL: a web server, S3, memory. Skipped without fsspec: it is an extra."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright
from shardwright.storage import urls
from tests.servers import new_container, use_azure
from tests.shards import peers
from tests.shards.packed import assert_sample, expected, file_order, packed
from tests.shards.uploaded import upload
from tests.shards.webserver import Manner, WebServer, serving

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.local import LocalFileSystem  # noqa: E402

SAMPLES = 12


class Counted(LocalFileSystem):  # type: ignore[misc, unused-ignore]
    """A file system that writes down what is read from it."""

    protocol = "counted"
    read: list[tuple[str, int]] = []  # noqa: RUF012 - fsspec makes the instances

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:  # noqa: ANN401
        data: bytes = super().cat_file(path, start, end, **options)
        self.read.append((path.rpartition("/")[2], len(data)))
        return data


fsspec.register_implementation("counted", Counted, clobber=True)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    Counted.read.clear()
    return packed(tmp_path, SAMPLES)


def test_a_url_gives_the_same_samples(shards: Path) -> None:
    dataset = shardwright.open(f"counted://{shards}")
    assert len(dataset) == SAMPLES
    for sample, image_id in zip(dataset, file_order(SAMPLES), strict=True):
        assert_sample(sample, image_id)
    assert_sample(dataset.by_id("img7"), "img7")


def test_a_column_at_a_url_is_read_once_without_the_arrays(shards: Path) -> None:
    dataset = shardwright.open(f"counted://{shards}")
    Counted.read.clear()
    assert dataset.column("image_id") == file_order(SAMPLES)
    assert len(Counted.read) == SAMPLES
    assert max(size for _, size in Counted.read) < 2000
    assert len(dataset.batches(2, repeats={"image_id": {"img1": 2}})) == 6
    assert len(Counted.read) == SAMPLES


def test_a_memory_file_system_works_too(shards: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in shards.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/set/{path.relative_to(shards)}", path.read_bytes())
    dataset = shardwright.open("memory://set")
    assert [sample["__key__"] for sample in dataset] == file_order(SAMPLES)
    assert_sample(dataset[4], "img8")


def test_a_sample_is_one_range_and_a_field_no_more_than_itself(shards: Path) -> None:
    dataset = shardwright.open(f"counted://{shards}")
    assert {name.rpartition(".")[2] for name, _ in Counted.read} == {"json", "idx"}
    Counted.read.clear()
    assert_sample(dataset[0], "img0")
    ((name, size),) = Counted.read
    assert name == "shard-000000.tar"
    assert size < (shards / "bucket_64x64" / name).stat().st_size / 3
    Counted.read.clear()
    sample = dataset.fields("dinov3.npy", "t5m.npy")[0]
    np.testing.assert_array_equal(sample["dinov3.npy"], expected("img0")["dinov3.npy"])
    assert [size for _, size in Counted.read] == [512 + 128 + 4096, 512 + 128 + 77]


def test_batches_are_the_same_as_of_a_local_folder(shards: Path) -> None:
    local = list(shardwright.open(shards).batches(3, seed=4))
    remote = list(shardwright.open(f"counted://{shards}").batches(3, seed=4))
    for here, there in zip(local, remote, strict=True):
        assert here["image_id"] == there["image_id"]
        np.testing.assert_array_equal(here["vae.npy"], there["vae.npy"])


def test_a_remote_folder_needs_its_manifest(shards: Path) -> None:
    shutil.rmtree(shards / ".shardwright")
    with pytest.raises(shardwright.InputMissingError, match=r"so copy \.shardwright along"):
        shardwright.open(f"counted://{shards}")


def test_missing_and_short_shards_are_named(shards: Path) -> None:
    dataset = shardwright.open(f"counted://{shards}")
    path = shards / "bucket_64x64" / "shard-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[:5000])
    with pytest.raises(shardwright.DamageError, match=r"shard-000000\.tar: is shorter than its"):
        dataset[0]
    path.write_bytes(bytes(len(data)))
    with pytest.raises(shardwright.DamageError, match="differs from its index at byte 0: damaged"):
        dataset[0]
    path.unlink()
    with pytest.raises(shardwright.InputMissingError, match=r"shard-000000\.tar: is missing"):
        dataset[0]


def test_an_unknown_protocol_is_a_usage_error() -> None:
    with pytest.raises(shardwright.UsageError, match="nonsense://x: cannot be opened"):
        shardwright.open("nonsense://x")


@pytest.mark.parametrize(("scheme", "package"), [("az", "adlfs"), ("gs", "gcsfs")])
def test_the_package_that_a_cloud_needs_is_named(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(shardwright.MissingExtraError) as caught:
        shardwright.open(f"{scheme}://bucket/shards")
    assert str(caught.value) == (
        f"{scheme}://bucket/shards: needs {package}; run pip install {package}"
    )


def test_look_reads_azure(shards: Path, azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_azure(monkeypatch, azurite)
    url = upload(shards, new_container(azurite) / "shards")
    there, here = (shardwright.look(place, id="img7").sample for place in (url, shards))
    assert there is not None
    assert here is not None
    assert there.pop("place") == here.pop("place").replace(str(shards), url)
    assert there == here
    urls._store.cache_clear()


def keys(dataset: Any) -> list[str]:  # noqa: ANN401 - a dataset
    return [sample["__key__"] for sample in dataset]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_in_use_can_go_to_another_process(shards: Path, method: str) -> None:
    dataset = shardwright.open(f"file://{shards}")
    assert keys(dataset) == file_order(SAMPLES)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(keys, (dataset,)) == file_order(SAMPLES)


@pytest.fixture
def server(shards: Path) -> Iterator[WebServer]:
    pytest.importorskip("aiohttp")
    with serving(shards) as server:
        yield server


def test_a_web_server_gives_the_same_samples(server: WebServer) -> None:
    dataset = shardwright.open(server.url)
    for sample, image_id in zip(dataset, file_order(SAMPLES), strict=True):
        assert_sample(sample, image_id)
    assert_sample(dataset.by_id("img7"), "img7")


def test_of_a_web_server_only_ranges_are_read(server: WebServer) -> None:
    dataset = shardwright.open(f"{server.url}/")
    assert {name.rpartition(".")[2] for name, _ in server.served} == {"json", "idx"}
    server.served.clear()
    for batch in dataset.fields("dinov3.npy", "t5m.npy").batches(3):
        for row, image_id in enumerate(batch["__key__"]):
            np.testing.assert_array_equal(
                batch["dinov3.npy"][row], expected(image_id)["dinov3.npy"]
            )
    asked = SAMPLES * (512 + 128 + 4096 + 512 + 128 + 77)
    between = SAMPLES * 2048  # a JSON member is sooner fetched too than a second range
    assert asked <= sum(size for _, size in server.served) < asked + between
    server.served.clear()
    list(dataset)
    headers_and_ends = SAMPLES * 5 * 512 + 4 * 1024
    shards = sum(path.stat().st_size for path in server.folder.glob("bucket_*/*.tar"))
    assert shards - headers_and_ends < sum(size for _, size in server.served) < shards


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        (
            "whole",
            r"shard-000000\.tar: server sent 676,864 bytes .* does not serve ran",
        ),
        ("cut off", r"shard-000000\.tar: cannot be read \(ClientPayloadError"),
        ("refused", r"shard-000000\.tar: cannot be read \(ClientResponseError: 503"),
    ],
)
def test_a_web_server_that_misbehaves_is_an_error(
    server: WebServer, manner: Manner, message: str
) -> None:
    dataset = shardwright.open(server.url)
    assert_sample(dataset[0], "img0")
    server.manner = manner
    with pytest.raises(shardwright.StorageError, match=message):
        dataset[0]
    with pytest.raises(shardwright.StorageError, match=r"shard-\d+\.tar: "):
        list(dataset.batches(3))
    server.manner = "ranges"
    assert_sample(dataset[0], "img0")


def test_a_shard_that_is_gone_or_short_on_a_web_server_is_named(server: WebServer) -> None:
    dataset = shardwright.open(server.url)
    path = server.folder / "bucket_64x64" / "shard-000000.tar"
    data = path.read_bytes()
    path.write_bytes(data[:5000])
    with pytest.raises(shardwright.DamageError, match=r"shard-000000\.tar: is shorter than its"):
        dataset[0]
    with pytest.raises(shardwright.ShardwrightError, match=r"shard-000000\.tar: "):
        dataset[1]
    path.unlink()
    with pytest.raises(shardwright.InputMissingError, match=r"shard-000000\.tar: is missing"):
        dataset[0]


def test_a_web_server_that_is_not_there_is_an_error(server: WebServer) -> None:
    with serving(server.folder) as gone:
        url = gone.url
    with pytest.raises(shardwright.StorageError, match=r"manifest\.json: cannot be read \(Client"):
        shardwright.open(url)
    with pytest.raises(shardwright.InputMissingError, match=r"so copy \.shardwright along"):
        shardwright.open(f"{server.url}/elsewhere")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_connections_are_not_taken_to_another_process(server: WebServer, method: str) -> None:
    dataset = shardwright.open(server.url)
    assert keys(dataset) == file_order(SAMPLES)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(keys, [dataset] * 2) == [file_order(SAMPLES)] * 2
    assert keys(dataset) == file_order(SAMPLES)


def test_a_password_in_a_url_is_never_shown(server: WebServer) -> None:
    password = "0123".join("ab")
    url = server.url.replace("://", f"://user:{password}@")
    dataset = shardwright.open(url)
    assert keys(dataset) == file_order(SAMPLES)
    errors: list[shardwright.ShardwrightError] = []
    manners: list[Manner] = ["refused", "cut off", "whole"]
    for server.manner in manners:
        with pytest.raises(shardwright.StorageError) as failed:
            dataset[0]
        errors.append(failed.value)
    for other in (f"{url}/elsewhere", f"nonsense://user:{password}@host/shards"):
        with pytest.raises(shardwright.ShardwrightError) as refused:
            shardwright.open(other)
        errors.append(refused.value)
    assert str(errors[0]).startswith(f"{server.url}/bucket_64x64/shard-000000.tar: cannot be read")
    assert str(errors[-1]).startswith("nonsense://host/shards: cannot be opened (")
    for error in errors:
        assert password not in "".join(traceback.format_exception(error))
        assert password not in str(error.path)


def test_s3_gives_the_same_samples(shards: Path, tmp_path: Path) -> None:
    if not (peers.FOLDER / "moto").is_dir():
        pytest.skip("make test installs it")
    (samples,) = peers.run("s3", tmp_path / "samples", shards)
    for sample, image_id in zip(samples, file_order(SAMPLES), strict=True):
        assert_sample(sample, image_id)
