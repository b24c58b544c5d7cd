"""Many requests at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from threading import Thread

import pytest

from shardwright import interrupts
from shardwright.errors import StorageError
from shardwright.storage.objects import together
from shardwright.storage.urls import Url
from tests.flaky import Flaky
from tests.servers import new_bucket


def test_results_come_in_order_and_few_are_at_work_at_once() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def square(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001 * (number % 5))
        with lock:
            now -= 1
        return number * number

    assert list(together(square, range(100), 8)) == [number * number for number in range(100)]
    assert 1 < most <= 8
    assert list(together(square, [])) == []


def test_an_error_ends_the_others_too(moto: str, proxy: Flaky) -> None:
    files = [new_bucket(moto) / "file", *(Url("s3://no-such-bucket/file") for _ in range(2))]
    files[0].write(b"data")
    found = together(Url.read_bytes, files)
    assert next(found) == b"data"
    with pytest.raises(StorageError, match="NoSuchBucket"):
        next(found)


def test_nothing_is_tried_again_when_nobody_waits(
    moto: str, proxy: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    folder = new_bucket(moto)
    (folder / "file").write(b"data")
    proxy.fail(at=1, how="hang", times=100)
    given_up = threading.Semaphore(0)

    def get(file: Url) -> None:
        try:
            file.read_bytes()
        except StorageError:
            given_up.release()

    def interrupt() -> None:
        while len(proxy.failed) < 4:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def read() -> None:
        with interrupts.caught():
            Thread(target=interrupt).start()
            list(together(get, [folder / "file"] * 4))

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read()
    assert time.monotonic() - started < 0.9  # each request takes a second
    for _ in range(4):
        assert given_up.acquire(timeout=50)
    assert len(proxy.failed) == 4
    assert caplog.messages == []
