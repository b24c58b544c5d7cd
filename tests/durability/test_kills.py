"""Real processes, killed by the kernel at random moments, until the work is done."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from shardwright import migrate, pack
from tests import stage1
from tests.commands import COMMAND, children, is_alive, wait_until
from tests.derive.pictures import make_images
from tests.durability import processes
from tests.durability.folders import Contents, assert_arrays_are_whole, restore
from tests.durability.scenarios import TINY, small_store, twenty
from tests.durability.soak import Tally, times
from tests.faults import contents

KILLS = 6


def offspring(process: BaseProcess) -> list[int]:
    """List the workers of a process, as far as it lives."""
    assert process.pid is not None
    with suppress(FileNotFoundError, ProcessLookupError):
        return [pid for pid in children(process.pid) if is_alive(pid)]
    return []


@pytest.mark.timeout(60 * times(2))
@pytest.mark.parametrize("workers", [1, 2])
def test_after_any_number_of_kills_the_bytes_are_those_of_an_unbroken_run(
    workers: int, tmp_path: Path, tally: Tally
) -> None:
    store = small_store(tmp_path / "derived", twenty(60))
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", shard_size=3, workers=1)
    told = tmp_path / "told"
    command: list[str | Path] = ["pack", "--resume", "--shard-size", "3", "--workers", str(workers)]
    command += ["--derived-dir", store.root, "--output-dir"]
    processes.start(["--version"], told).join()  # the first takes longer
    started = time.monotonic()
    processes.start([*command, tmp_path / "timed"], told).join()
    usual = time.monotonic() - started
    assert contents(tmp_path / "timed") == contents(tmp_path / "unbroken")
    draw = random.Random(workers)
    kills = 0
    while kills < times(KILLS):
        process = processes.start([*command, tmp_path / "shards"], told)
        process.join(usual * draw.uniform(0.1, 1.1))
        found = offspring(process)
        process.kill()
        process.join()
        wait_until(lambda left=found: not any(map(is_alive, left)))  # type: ignore[misc]
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert process.exitcode == 0, told.read_text()
        assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")
        shutil.rmtree(tmp_path / "shards")  # there was nothing left to kill: start over
    processes.start([*command, tmp_path / "shards"], told).join()
    assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")
    tally(kills_of_a_process=kills)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_an_overwrite_that_is_killed_again_and_again_ends_right(
    tmp_path: Path, tally: Tally
) -> None:
    store = small_store(tmp_path / "derived", twenty(40))
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", shard_size=4, workers=1)
    pack(derived_dir=store.root, output_dir=tmp_path / "shards", shard_size=3, workers=1)
    command = [
        *(*COMMAND, "pack", "--overwrite", "--shard-size", "4", "--workers", "2"),
        *("--derived-dir", str(store.root), "--output-dir", str(tmp_path / "shards")),
    ]
    draw = random.Random(0)
    for _ in range(times(3)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.1, 0.5))
        offspring = children(process.pid) if process.poll() is None else []
        process.kill()
        tally(kills_of_a_process=process.wait() == -signal.SIGKILL)
        wait_until(lambda left=offspring: not any(map(is_alive, left)))  # type: ignore[misc]
    subprocess.run(command, check=True, capture_output=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")


@dataclass(frozen=True)
class Work:
    """A command that makes a store and takes a while, and what must come of it."""

    command: list[str | Path]
    output: Path
    told: Path  # the file that has what the command tells
    start: Contents
    expected: Contents
    done: int  # its exit code
    seconds: float  # that it takes

    def reset(self) -> None:
        """Start over."""
        shutil.rmtree(self.output)
        restore(self.output, self.start)

    def finish(self) -> None:
        """Let it come to its end, and compare."""
        process = processes.start(self.command, self.told)
        process.join()
        assert process.exitcode == self.done, self.told.read_text()
        assert contents(self.output) == self.expected


def work(name: str, folder: Path) -> Work:
    """Set up a migration or a derivation, and measure it."""
    output, told = folder / "output", folder / "told"
    command: list[str | Path] = [name, "--derived-dir", output]
    if name == "derive":
        output.mkdir()
        images = make_images(folder / "images", 16, TINY)
        (images / "img007.png").write_bytes(b"broken")
        command += [images, "--encoders", "sketch", "--batch-size", "2"]
    else:
        stage1.write(output, *(stage1.record(f"img{n:03}", seed=n) for n in range(120)), "no json")
    start = contents(output)
    processes.start(["--version"], told).join()  # the first takes longer
    began = time.monotonic()
    process = processes.start(command, told)
    process.join()
    seconds = time.monotonic() - began
    assert process.exitcode == 3, told.read_text()
    work = Work(command, output, told, start, contents(output), 3, seconds)
    work.reset()
    return work


@pytest.mark.timeout(60 * times(2))
@pytest.mark.parametrize("name", ["migrate", "derive"])
def test_a_store_ends_in_the_same_bytes_after_any_number_of_kills(
    name: str, folder: Path, tally: Tally
) -> None:
    job = work(name, folder)
    draw = random.Random(3)
    kills = 0
    while kills < times(KILLS):
        process = processes.start(job.command, job.told)
        time.sleep(job.seconds * draw.uniform(0.1, 1.1))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            assert_arrays_are_whole(job.output, job.start, job.expected)
        else:  # there was nothing left to kill
            assert process.exitcode == job.done, job.told.read_text()
            assert contents(job.output) == job.expected
            job.reset()
    job.finish()
    tally(kills_of_a_process=kills)


def _has_workers(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has both its workers, or has ended already."""
    return process.poll() is not None or len(children(process.pid)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_a_migration_by_several_processes_ends_in_the_same_bytes_after_kills(
    folder: Path, tally: Tally
) -> None:
    output, unbroken = folder / "output", folder / "unbroken"
    records = [stage1.record(f"img{n:03}", seed=n % 20) for n in range(1000)]  # three parts
    for place in (output, unbroken):
        stage1.write(place, *records)
    migrate(derived_dir=unbroken, workers=1)
    start, expected = contents(output), contents(unbroken)
    command = [*COMMAND, "migrate", "--workers", "2", "--derived-dir", str(output)]
    for kill in range(times(2)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(partial(_has_workers, process))
        time.sleep(kill % 4 * 0.15)
        offspring = children(process.pid) if process.poll() is None else []
        process.kill()
        tally(kills_of_a_process=process.wait() == -signal.SIGKILL)
        wait_until(lambda left=offspring: not any(map(is_alive, left)))  # type: ignore[misc]
        assert_arrays_are_whole(output, start, expected)
    subprocess.run(command, check=True, capture_output=True)
    assert contents(output) == expected
