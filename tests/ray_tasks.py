"""What workers on a Ray cluster do in tests. A module of its own: other processes import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwright.engine import DONE, Done


@dataclass(frozen=True)
class Held:
    """Says where it is, and goes on only when a file is there; the task, its node, its process."""

    go: Path

    def __call__(
        self, device: str, tasks: Iterator[int]
    ) -> Iterator[tuple[str, int, str, int] | Done]:
        node = os.environ["TEST_NODE"]
        for task in tasks:
            yield "begun", task, node, os.getpid()
            wait_for(self.go)
            yield "done", task, node, os.getpid()
            yield DONE


def about(device: str, tasks: Iterator[object]) -> Iterator[tuple[str, ...] | Done]:
    names = ("OMP_NUM_THREADS", "SHARDWRIGHT_CORES", "PILLOW_BLOCKS_MAX", "CUDA_VISIBLE_DEVICES")
    for _ in tasks:
        yield device, os.getcwd(), *(os.environ.get(name, "") for name in names)
        yield DONE


@dataclass(frozen=True)
class Twice:
    """A task that says two things; the second only when a file is there."""

    go: Path

    def __call__(self, task: int) -> Iterator[tuple[int, str]]:
        yield task, "first"
        (self.go.parent / f"{os.environ['TEST_NODE']}.begun").touch()
        wait_for(self.go)
        yield task, "second"


@dataclass(frozen=True)
class Deadly:
    """A task that says two things; one of them kills its process between these, some times."""

    marks: Path
    on: int
    times: int

    def __call__(self, task: int) -> Iterator[tuple[int, str]]:
        yield task, "first"
        count = len(list(self.marks.iterdir()))
        if task == self.on and count < self.times:
            (self.marks / str(count)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield task, "second"


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def machine() -> str:
    return os.environ.get("TEST_NODE", "driver")
