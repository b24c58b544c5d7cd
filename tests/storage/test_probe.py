"""Whether a store can be written to by more than one writer, or at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardwright.errors import StorageError
from shardwright.storage import urls
from shardwright.storage.probe import require_conditions
from shardwright.storage.urls import Url, names_below
from tests.flaky import Flaky, How
from tests.servers import new_bucket, use_s3
from tests.storage.conftest import Answer


@pytest.fixture
def careless(rclone: str, monkeypatch: pytest.MonkeyPatch) -> Url:
    """A folder at a store that ignores conditions."""
    use_s3(monkeypatch, rclone)
    return new_bucket(rclone) / "shards"


def test_a_store_that_knows_conditions_is_used_with_them(root: Url) -> None:
    require_conditions(root / "shards")
    assert names_below(root) == []


def test_what_a_killed_run_has_left_is_removed_by_the_next_one(root: Url) -> None:
    folder = root / "shards"
    (folder / ".shardwright/probe-0123456789abcdef").write(b"first")
    (folder / ".shardwright/other").write(b"stays")
    require_conditions(folder)
    assert names_below(root) == ["shards/.shardwright/other"]


@pytest.mark.parametrize("at", range(2, 11))
def test_a_run_whose_probe_is_removed_by_another_one_tries_again(
    moto: str, proxy: Flaky, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    folder, take, removed = new_bucket(moto) / "shards", proxy.take, list[str]()

    def taken(request: str) -> How | None:
        how = take(request)
        if len(proxy.requests) >= at and not removed:
            removed.append(request.split()[1].partition("?")[0].partition("/.shardwright/")[2])
            (folder / ".shardwright" / removed[0]).remove()
        return how

    monkeypatch.setattr(proxy, "take", taken)
    require_conditions(folder)
    assert removed[0].startswith("probe-")
    assert names_below(folder) == []


def test_a_store_that_ignores_conditions_is_refused(careless: Url) -> None:
    with pytest.raises(StorageError) as caught:
        require_conditions(careless)
    assert str(caught.value) == (
        f"{careless}: this store ignores conditions, so two runs at once could replace each "
        "other's files; use another store, or write to a folder and copy it there"
    )
    assert names_below(careless) == []


def test_a_store_that_ignores_conditions_when_uploads_end_is_refused(
    moto: str, proxy: Flaky, completing: Callable[[Callable[..., Answer]], None]
) -> None:
    def careless(request: Any, body: bytes, pass_on: Callable[..., Answer]) -> Answer:  # noqa: ANN401
        del request.headers["If-None-Match"]
        return pass_on(request, body)

    completing(careless)
    folder = new_bucket(moto) / "shards"
    with pytest.raises(StorageError, match="this store ignores conditions"):
        require_conditions(folder)
    assert names_below(folder) == []
    assert list(folder.objects.uploads("")) == []


def test_the_probe_takes_few_requests(moto: str, proxy: Flaky) -> None:
    folder = new_bucket(moto) / "shards"
    require_conditions(folder)
    assert len(proxy.requests) == 12


def test_a_bucket_that_is_not_there_is_named(bucket: Url) -> None:
    with pytest.raises(StorageError) as caught:
        require_conditions(Url("s3://no-such-bucket/shards"))
    assert str(caught.value).startswith("s3://no-such-bucket/shards: cannot write to this folder (")
    assert str(caught.value).endswith("; make the bucket first, or check its name")


def test_a_container_that_is_not_there_is_named(
    azurite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.servers import use_azure

    use_azure(monkeypatch, azurite)
    with pytest.raises(StorageError) as caught:
        require_conditions(Url("az://nothing/shards"))
    assert str(caught.value) == (
        "az://nothing/shards: cannot write to this folder (there is no az://nothing); "
        "make it first, or check its name"
    )
    urls._store.cache_clear()
