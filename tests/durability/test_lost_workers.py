"""A worker that was thought lost goes on later, and cannot change a shard that counts.

The encoders give other bits each time, as GPUs may, so a file of one attempt never fits the commit
of another.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shardwright import verify
from shardwright.building import run
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.engine import DONE
from shardwright.engine.devices import Death
from shardwright.errors import ShardwrightError
from shardwright.recipes import find
from shardwright.storage.disk import Disk
from shardwright.storage.files import using
from tests.building.builds import build, write_recipe
from tests.derive.pictures import make_images
from tests.durability.soak import SOAK, Tally
from tests.faults import Killed

ROUNDS = 200 if SOAK else 40
CALLS = ("create", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "fsync_folder")
LOST = Death("cpu", None, "the worker was lost", "nothing helps")


class Noisy:
    """An encoder whose arrays are never the same."""

    def __init__(self, encoder: object) -> None:
        self._encoder: Any = encoder

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)

    def encode(self, *inputs: Any) -> Any:  # noqa: ANN401 - of any encoder
        arrays = self._encoder.encode(*inputs)
        return arrays + np.random.default_rng().standard_normal(arrays.shape, np.float32)


class PausingDisk(Disk):
    """Holds a worker at its nth call, until all others have made so many calls since.

    At another of their calls the driver dies.
    """

    def __init__(self, at: int, others: int, killed: int | None) -> None:
        self.at, self.others, self.killed = at, others, killed
        self.lost: threading.Thread | None = None
        self.before: set[threading.Thread] = set()  # that are not of the lost worker
        self.threads: set[threading.Thread] = set()  # of the lost worker
        self.is_back = False  # while it goes on, and nobody else does
        self.seen, self.since, self.dead = 0, 0, False
        self.paused, self.released = threading.Event(), threading.Event()

    def meet(self) -> None:
        thread = threading.current_thread()
        if self.lost is not None and not self.paused.is_set() and self.lost.is_alive():
            self.threads.add(thread)  # nobody else is at work
            self.seen += 1
            if self.seen == self.at:
                self.threads |= {*threading.enumerate()} - self.before
                self.paused.set()
        if thread in self.threads:
            assert not self.paused.is_set() or self.released.wait(300)
        elif self.paused.is_set() and not self.is_back:
            self.since += 1
            if self.since == self.others:
                self.release()
            self.dead |= self.since == self.killed
            if self.dead:
                raise Killed

    def release(self) -> None:
        self.is_back = True
        self.released.set()
        if self.lost is not None:
            self.lost.join(300)
            assert not self.lost.is_alive()
        self.is_back = False


def _meeting(call: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(disk: PausingDisk, *given: Any) -> Any:  # noqa: ANN401 - of any call
        disk.meet()
        return call(disk, *given)

    return replacement


for _name in CALLS:
    setattr(PausingDisk, _name, _meeting(getattr(Disk, _name)))


@dataclass
class LosingDevices:
    """One device, of which the worker of one task is lost while it writes."""

    disk: PausingDisk
    first: int  # the number of the task
    names: tuple[str, ...] = ("cpu",)
    is_here: ClassVar = True
    cores_each: int = 1
    given: Iterator[int] = field(default_factory=lambda: iter(range(1 << 20)))

    def run(
        self,
        function: Callable[[str, Iterator[Any]], Iterator[Any]],
        tasks: Iterable[Any],
        instead: Callable[[Any, Death], Any] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Generator[Any, None, None]:
        for task in tasks:
            again = task
            if next(self.given) == self.first:
                messages = self._begun(function, task)
                if not self.disk.paused.is_set():
                    yield from messages
                    continue
                assert instead is not None
                again = instead(task, LOST)
            yield from (m for m in function("cpu", iter([again])) if m is not DONE)

    def _begun(self, function: Callable[..., Iterator[Any]], task: object) -> list[Any]:
        """Run a task until its worker is lost; give what it says if it is not."""
        messages: list[Any] = []

        def work() -> None:
            with suppress(ShardwrightError, OSError):  # what it writes to may be gone
                messages.extend(m for m in function("cpu", iter([task])) if m is not DONE)

        self.disk.lost = threading.Thread(target=work)
        self.disk.before = {*threading.enumerate()}
        self.disk.lost.start()
        while self.disk.lost.is_alive() and not self.disk.paused.wait(0.01):
            pass
        return messages


@pytest.mark.timeout(1800)
def test_a_lost_worker_that_comes_back_cannot_change_a_shard_that_counts(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 4)
    components = find(write_recipe(tmp_path)).recipe.components
    own = {c.name: Noisy(load(c, Options(), {})) for c in components}
    options = {"encoders": own, "shard_size": 2, "fit": "bucket"}
    paused = came_back = killed = 0
    for number in range(ROUNDS):
        draw, output = random.Random(number), tmp_path / f"out{number}"
        dies = draw.randrange(1, 60) if draw.random() < 0.4 else None
        disk = PausingDisk(draw.randrange(1, 50), draw.randrange(1, 120), dies)
        devices = LosingDevices(disk, draw.randrange(2))
        with using(disk):
            with monkeypatch.context() as patched:
                patched.setattr(run, "Devices", lambda names, devices=devices: devices)
                try:
                    build(images, output, **options)
                except Killed:
                    killed += 1
            disk.dead, disk.killed = False, None
            came_back += disk.released.is_set()
            if draw.random() < 0.5:
                disk.release()
            build(images, output, **options)
            disk.release()
        paused += disk.paused.is_set()
        assert verify(output, read_data=True, workers=1).findings == [], number
        assert build(images, output, **options).already_there == 4
        assert verify(output, read_data=True, workers=1).findings == [], number
    assert paused > ROUNDS // 2
    assert came_back
    assert killed
    tally(workers_that_came_back=paused, drivers_killed_meanwhile=killed)
