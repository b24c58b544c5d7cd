"""Packing to a URL gives the bytes of a local pack; what cannot be done there is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import LockedError, ShardExistsError, SourceChangedError, StorageError, UsageError
from shardwright.shards.format import manifest
from shardwright.storage import remote, urls
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Url
from tests.durability.scenarios import small_store, twenty
from tests.durability.soak import SOAK
from tests.remote import assert_same, held
from tests.servers import new_bucket, use_s3
from tests.stores import Store


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make room for large parts takes longer than to send these small files."""
    monkeypatch.setattr(remote, "PART", 1 << 20)


@pytest.fixture
def small(tmp_path: Path) -> Store:
    """A store of twenty tiny samples in two buckets."""
    return small_store(tmp_path / "derived", twenty())


@pytest.fixture
def settled(small: Store) -> Store:
    """That store, made in an earlier second than all that follows.

    Object stores round times down, so that shards would seem to be older than their samples.
    """
    time.sleep(1 - time.time() % 1)
    return small


def pack(store: Store, output: Path | Url, **options: Any) -> shardwright.PackSummary:  # noqa: ANN401
    given = {"shard_size": 3, "workers": 1, **options}
    return shardwright.pack(derived_dir=store.root, output_dir=str(output), **given)


def assert_ok(folder: Url) -> None:
    report = shardwright.verify(str(folder), read_data=True)
    assert report.checked
    assert not report.findings


def interrupted(store: Store, output: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack until two shards are there."""
    publish, done = RemotePlace.publish, list[str]()

    def publishing(storage: RemotePlace, name: str, condition: str | None = None) -> str:
        if len(done) == 7:  # after two shards and a part of the third
            raise KeyboardInterrupt
        done.append(name)
        return publish(storage, name, condition)

    with monkeypatch.context() as patched:
        patched.setattr(RemotePlace, "publish", publishing)
        with pytest.raises(KeyboardInterrupt):
            pack(store, output)


OPTIONS: dict[str, dict[str, Any]] = {
    "sha256": {"sha256": True, "workers": 2},
    "split": {"split": "val=40%", "shuffle": True, "seed": 5, "limit": 14},
}
PAIRS = [("moto", "sha256"), ("ministack", "split"), ("moto", "split"), ("ministack", "sha256")]


@pytest.mark.parametrize(("server", "name"), PAIRS if SOAK else PAIRS[:2])
def test_a_pack_to_a_url_has_the_bytes_of_a_local_one(
    server: str,
    name: str,
    small: Store,
    output: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_s3(monkeypatch, url := request.getfixturevalue(server))
    folder = new_bucket(url) / "my shards"
    for place in (output, folder):
        pack(small, place, **OPTIONS[name])
    assert_same(folder, output)
    assert_ok(folder)
    urls._store.cache_clear()


def test_append_and_resume_at_a_url_equal_local_ones(
    bucket: Url, settled: Store, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bucket / "shards"
    interrupted(settled, folder, monkeypatch)
    assert manifest.load_unfinished(folder) is not None
    with pytest.raises(ShardExistsError, match="give --resume to finish the interrupted run, or"):
        pack(settled, folder)
    summary = pack(settled, folder, resume=True)
    assert summary.written_shards < 8
    pack(settled, output)
    assert_same(folder, output)
    small_store(settled.root, twenty(28))
    for place in (output, folder):
        assert pack(settled, place, append=True).written_samples == 8
    assert_same(folder, output)
    before = held(folder)
    assert pack(settled, folder, append=True).written_samples == 0
    assert held(folder) == before
    assert_ok(folder)


def test_what_would_replace_shards_is_refused(bucket: Url, small: Store) -> None:
    for way in ("overwrite", "sync"):
        with pytest.raises(UsageError) as refused:
            pack(small, bucket / "shards", **{way: True})
        assert str(refused.value) == (
            f"{bucket}/shards: --{way}: is a URL, where shards are added and never replaced; "
            "give another --output-dir"
        )
    assert not held(bucket)


def test_a_dry_run_writes_nothing(bucket: Url, small: Store) -> None:
    assert pack(small, bucket / "shards", dry_run=True).written_shards == 8
    assert not held(bucket)
    pack(small, bucket / "shards", limit=5)
    before = dict(bucket.walk())
    assert pack(small, bucket / "shards", append=True, dry_run=True).written_samples == 15
    assert pack(small, bucket / "shards", dry_run=True).obstacle
    assert dict(bucket.walk()) == before


def test_another_run_that_has_begun_is_not_disturbed(bucket: Url, small: Store) -> None:
    folder = bucket / "shards"
    pack(small, folder, limit=5)
    done = manifest.load_manifest(folder)
    assert done is not None
    settings = done.runs[-1].settings
    other = manifest.Unfinished(
        append=True, plan="other", settings=settings, replaces=[], base=done, build={}
    )
    manifest.save_unfinished(folder, other)
    before = held(folder)
    with pytest.raises(UsageError, match="its last run was an interrupted build"):
        pack(small, folder, append=True)
    mine = manifest.Unfinished(append=True, plan="mine", settings=settings, replaces=[], base=done)
    with pytest.raises(LockedError, match="another run has begun here; wait until it has finished"):
        manifest.save_unfinished(folder, mine)
    manifest.remove_unfinished(folder, "mine")  # as a run does that ends late
    assert held(folder) == before


def test_a_shard_that_another_run_has_replaced_is_not_listed(
    bucket: Url, settled: Store, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, publish = bucket / "shards", RemotePlace.publish
    shard = "bucket_24x16/shard-000001.tar"

    def publishing(storage: RemotePlace, name: str, condition: str | None = None) -> str:
        etag = publish(storage, name, condition)
        if name == shard:
            (storage.folder / name).write((storage.folder / name).read_bytes()[::-1])
        return etag

    with monkeypatch.context() as patched:
        patched.setattr(RemotePlace, "publish", publishing)
        with pytest.raises(SourceChangedError) as changed:
            pack(settled, folder)
    assert str(changed.value) == (
        f"{folder}/{shard}: another run has written it too; run the same pack with --resume"
    )
    assert manifest.load_manifest(folder) is None
    assert pack(settled, folder, resume=True).written_shards == 1
    pack(settled, output)
    assert_same(folder, output)


def test_a_store_that_ignores_conditions_is_refused(
    rclone: str, small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, rclone)
    folder = new_bucket(rclone) / "shards"
    with pytest.raises(StorageError, match="this store ignores conditions"):
        pack(small, folder)
    assert not held(folder)
    urls._store.cache_clear()
