"""What workers do in tests. A module of its own, because a fresh process imports it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from shardwright import StorageError


def spell(word: str) -> Iterator[str]:
    yield from word


def who(_: object) -> Iterator[int]:
    yield os.getpid()


def where(_: object) -> Iterator[str]:
    yield os.getcwd()


def marked(_: object) -> Iterator[bool]:
    """Whether this process has what its parent's script has set: a fork has, a fresh one not."""
    yield hasattr(sys.modules["__main__"], "MARK")


def fail(task: int) -> Iterator[int]:
    yield task
    if task == 3:
        raise StorageError("shard 3: no")
    time.sleep(0.01)


def throw(error: Exception) -> Iterator[int]:
    raise error
    yield 0


def throw_unsendable(_: object) -> Iterator[int]:
    raise ValueError("said", lambda: None)
    yield 0


class DemandingError(Exception):
    """One that pickle can write, but not read."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")


def throw_demanding(_: object) -> Iterator[int]:
    raise DemandingError("a.tar", "gone")
    yield 0


def say_unsendable(_: object) -> Iterator[object]:
    yield lambda: None


def hang(_: object) -> Iterator[int]:
    yield os.getpid()
    time.sleep(60)


def spin(_: object) -> Iterator[int]:
    """Be busy, so that no closed connection would be noticed."""
    yield os.getpid()
    while True:
        pass


def hang_if(task: int) -> Iterator[int]:
    yield os.getpid()
    if task:
        time.sleep(60)


def die(task: int) -> Iterator[int]:
    yield task
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def cut(task: int) -> Iterator[int | bytes]:
    """Die while a message is sent, which the reader does not take in time."""
    if task:
        time.sleep(60)
    yield os.getpid()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    yield bytes(3_000_000)


def leave(_: object) -> Iterator[int]:
    """End while idle: by the time the next task comes nobody takes it."""
    os._exit(7)
    yield 0


def large(task: int) -> Iterator[bytes]:
    yield bytes([task]) * 3_000_000


def measure(task: bytes) -> Iterator[tuple[int, int]]:
    yield task[0], len(task)


def flags(_: object) -> Iterator[tuple[int, int]]:
    yield sys.flags.utf8_mode, sys.flags.isolated
