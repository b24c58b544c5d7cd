"""Builds and derivations on two devices, in real processes: workers and drivers are killed.

A run that loses a worker ends as if nothing had happened. After a kill of the driver, or a signal,
no process stays, and the same command ends in the bytes of an unbroken run on one device.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from shardwright.layout import STATE_FOLDER
from shardwright.shards.format.moving import STAGE_FOLDER
from tests.commands import is_alive, wait_until
from tests.derive.pictures import make_images
from tests.durability import builds, processes
from tests.durability.folders import (
    assert_arrays_are_whole,
    assert_manifest_speaks_true,
    assert_shards_are_whole,
)
from tests.durability.scenarios import TINY
from tests.durability.soak import Tally, times
from tests.durability.test_kills import Work, offspring
from tests.faults import contents

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children"),
    pytest.mark.timeout(60 * times(3)),
]
KILLS = {"build": 4, "derive": 3}
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def work(name: str, folder: Path, device: str = "cpu:2") -> Work:
    """Set up a command, and measure it; what must come of it is made on one device."""
    output, told = folder / "output", folder / "told"
    words: list[str | Path] = [name, folder / "images", "--encoders", "sketch", "--batch-size", "2"]
    if name == "build":
        images = make_images(folder / "images", 24, builds.SIZES)
        words += ["--recipe", builds.make_recipe(folder, "dinov3", "t5"), "--shard-size", "2"]
        words += ["--output-dir", output]
    else:
        images = make_images(folder / "images", 20, TINY)
        words += ["--derived-dir", output]
    builds.break_off(images / "img000.png")
    builds.break_off(images / "img006.png")
    (images / "img009.png").write_bytes(b"broken")
    output.mkdir()
    unbroken = processes.start([*words, "--device", "cpu"], told)
    unbroken.join()
    assert unbroken.exitcode == 3, told.read_text()
    job = Work([*words, "--device", device], output, told, {}, contents(output), 3, 0)
    job.reset()
    began = time.monotonic()
    job.finish()
    job = Work(job.command, output, told, {}, job.expected, 3, time.monotonic() - began)
    job.reset()
    return job


def has_workers(process: BaseProcess) -> bool:
    """Whether a process has started a worker, or has ended already."""
    return not process.is_alive() or bool(offspring(process))


def assert_sound(job: Work) -> None:
    """Nothing under a final name is half written."""
    assert_manifest_speaks_true(job.output)
    assert_arrays_are_whole(job.output, job.start, job.expected)
    assert_shards_are_whole(job.output, job.start, job.expected)


@pytest.mark.parametrize("name", KILLS)
def test_kills_of_workers_and_drivers_lose_nothing(name: str, folder: Path, tally: Tally) -> None:
    job, draw = work(name, folder), random.Random(len(name))
    drivers = workers = 0
    while drivers + workers < times(KILLS[name]):
        process = processes.start(job.command, job.told)
        wait_until(partial(has_workers, process))
        time.sleep(job.seconds * draw.uniform(0, 0.9))
        found = offspring(process)
        if found and draw.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(draw.choice(found), signal.SIGKILL)
            workers += 1
        else:
            process.kill()
        process.join()
        wait_until(lambda left=found: not any(map(is_alive, left)))  # type: ignore[misc]
        if process.exitcode == -signal.SIGKILL:
            drivers += 1
            assert_sound(job)
        else:  # it ends well, with one worker less or none
            assert process.exitcode == job.done, job.told.read_text()
            assert contents(job.output) == job.expected, job.told.read_text()
            job.reset()
    job.finish()
    tally(kills_of_a_driver=drivers, kills_of_a_worker=workers)


@pytest.mark.parametrize(
    ("name", "device"), [("build", "cpu"), ("build", "cpu:2"), ("derive", "cpu:2")]
)
def test_a_signal_leaves_no_process_and_nothing_that_the_next_run_does_not_use(
    name: str, device: str, folder: Path, tally: Tally
) -> None:
    job, draw, sent = work(name, folder, device), random.Random(5), 0
    while sent < times(2):
        number = tuple(SIGNALS)[sent % len(SIGNALS)]
        process = processes.start(job.command, job.told)
        lock = job.output / STATE_FOLDER / "lock"
        wait_until(partial(is_at_work, process, lock))
        time.sleep(job.seconds * draw.uniform(0, 0.8))
        found = offspring(process)
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        process.join()
        told = job.told.read_text()
        assert "Traceback" not in told, told
        assert not any(map(is_alive, found))
        if process.exitcode in (job.done, -number):  # it had ended, and at most was telling so
            assert contents(job.output) == job.expected
            job.reset()
            continue
        assert process.exitcode == SIGNALS[number], told
        sent += 1
        assert_sound(job)
        stage = f"{STATE_FOLDER}/{STAGE_FOLDER}/"
        left = [path for path in contents(job.output) if path.endswith(".tmp")]
        assert not [path for path in left if not path.startswith(stage)]
    job.finish()
    tally(signals_to_a_process=sent)


def is_at_work(process: BaseProcess, lock: Path) -> bool:
    """Whether a process has the lock, or has ended already."""
    return not process.is_alive() or (lock.exists() and f" {process.pid} " in lock.read_text())
