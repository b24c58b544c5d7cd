"""A server that fails at one request: what is written in the end is the same."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from threading import Event, Thread
from typing import get_args

import pytest

from shardwright import interrupts
from shardwright.errors import StorageError
from shardwright.storage import objects, remote, s3, urls
from shardwright.storage.objects import NEW
from shardwright.storage.probe import require_conditions
from shardwright.storage.remote import RemoteFile, RemotePlace
from shardwright.storage.urls import Url, names_below
from tests.durability.soak import SOAK, Tally, some
from tests.flaky import Flaky, How, flaky
from tests.servers import new_bucket, new_container, use_azure

PART = 5 << 20
DATA = random.Random(1).randbytes(PART + 17)
HOWS: tuple[How, ...] = get_args(How)


@pytest.fixture
def folder(proxy: Flaky, moto: str, monkeypatch: pytest.MonkeyPatch) -> Url:
    """A folder at the server that fails."""
    monkeypatch.setattr(remote, "PART", PART)
    monkeypatch.setattr(remote, "_BLOCK", 1 << 20)
    monkeypatch.setattr(remote, "_AHEAD", 2)
    monkeypatch.setattr(s3, "_AT_ONCE", 2)  # objects in an answer that lists
    return new_bucket(moto) / "shards"


def job(folder: Url) -> None:
    """Write a shard in parts, its commit and the manifest, then list and read all of it."""
    require_conditions(folder)
    storage = RemotePlace(folder)
    with storage.create("0.tar") as upload:
        upload.put(DATA)
        upload.seal(len(DATA))
    etag = storage.publish("0.tar", NEW)
    assert RemotePlace(folder).claim("commit", etag.encode())
    first = (folder / "manifest").write(b"first", NEW)
    (folder / "manifest").write(b"second", first)
    assert (folder / "manifest").read_bytes() == b"second"
    assert names_below(folder) == ["0.tar", "commit", "manifest"]
    assert (folder / "0.tar").stat().etag == etag == (folder / "commit").read_bytes().decode()
    with RemoteFile(folder / "0.tar") as file:
        step = 1 << 19
        assert b"".join(file.pread(at, step) for at in range(0, file.size, step)) == DATA
    RemotePlace(folder).abandon(["0.tar"])  # one whose name did not reach us


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("shift", range(len(HOWS)) if SOAK else [3])
def test_one_fault_changes_nothing(
    folder: Url, proxy: Flaky, shift: int, half: int, tally: Tally
) -> None:
    job(folder)
    # In soak each request fails in each manner, else about one in each.
    numbers = some(range(1 + half, len(proxy.requests) + 1, 2), len(HOWS) // 2)
    for turn, number in enumerate(numbers):
        proxy.fail(at=number, how=HOWS[(2 * turn + half + shift) % len(HOWS)])
        job(folder.parent / f"{number}")
    assert len(proxy.failed) == len(numbers)
    assert list(folder.objects.uploads("")) == []
    tally(requests_that_failed=len(numbers))


@pytest.mark.parametrize("how", ["500_after", "reset_after"])
def test_a_create_whose_answer_is_lost_is_no_conflict(folder: Url, proxy: Flaky, how: How) -> None:
    proxy.fail(at=1, how=how)
    assert RemotePlace(folder).claim("commit", b"ours")
    assert (folder / "commit").read_bytes() == b"ours"
    proxy.fail(at=1, how=how)
    assert not RemotePlace(folder).claim("commit", b"theirs")
    assert (folder / "commit").read_bytes() == b"ours"


def test_a_removal_whose_answer_is_lost_is_finished(
    azurite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    with flaky(azurite) as proxy:
        use_azure(monkeypatch, proxy.url)
        container = new_container(azurite)
        for name in "abc":
            (container / name).write(b"")
        proxy.fail(at=2, how="500_after")  # behind the list
        RemotePlace(container).remove_all(keep=["b"])
        assert names_below(container) == ["b"]
        assert len(proxy.failed) == 1
        urls._store.cache_clear()


def test_a_fault_that_stays_ends_with_its_name(folder: Url, proxy: Flaky) -> None:
    proxy.fail(at=1, how="503", times=objects.TRIES)
    with pytest.raises(StorageError) as caught:
        RemotePlace(folder).claim("commit", b"")
    assert str(caught.value).startswith(f"{folder}/commit: 503 ")
    assert str(caught.value).endswith(
        "(8 tries); check the network and the store, then run the same command again"
    )
    assert len(proxy.failed) == objects.TRIES
    assert RemotePlace(folder).claim("commit", b"")


def test_each_try_is_reported(folder: Url, proxy: Flaky, caplog: pytest.LogCaptureFixture) -> None:
    proxy.fail(at=1, how="500", times=2)
    (folder / "commit").write(b"")
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(f"{folder}/commit: 500 ")
    assert caplog.messages[0].endswith("(1 of 8 tries)")


def test_an_upload_to_a_server_that_is_gone_ends_soon(folder: Url, proxy: Flaky) -> None:
    with RemotePlace(folder).create("0.tar") as upload:
        upload.put(DATA[: PART + 1])
        proxy.fail(at=1, how="hang", times=1000)
        started = time.monotonic()
        with suppress(StorageError):
            upload.put(DATA)
    assert time.monotonic() - started < 20


def test_ctrl_c_while_the_store_hangs_aborts_the_upload(folder: Url, proxy: Flaky) -> None:
    storage = RemotePlace(folder)
    ended = Event()

    def interrupt() -> None:
        while not (proxy.failed or ended.wait(0.01)):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    def send() -> None:
        with interrupts.caught(), storage.create("0.tar") as upload:
            upload.put(DATA[:PART])
            proxy.fail(at=2, how="hang", times=3)  # a part, behind the begin
            Thread(target=interrupt).start()
            upload.put(DATA)
            upload.seal(len(DATA))

    with pytest.raises(KeyboardInterrupt):
        send()
    ended.set()
    assert len(proxy.failed) <= 3
    assert list(folder.objects.uploads("")) == []
