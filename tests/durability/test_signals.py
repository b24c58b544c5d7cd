"""SIGINT, SIGTERM and SIGHUP at every call of the disk, and at any moment of a real process.

What was made is merged, the exit code tells, and the next run ends in the bytes of an unbroken one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from shardwright import pack
from shardwright.cli.main import main
from shardwright.layout import STATE_FOLDER
from shardwright.progress import quantity
from shardwright.storage.files import using
from tests.commands import COMMAND, children, is_alive, wait_until
from tests.derive.pictures import make_images, sketch, store_records
from tests.durability import processes
from tests.durability.folders import (
    JOURNAL,
    Contents,
    assert_arrays_are_whole,
    assert_manifest_speaks_true,
    assert_shards_are_whole,
)
from tests.durability.scenarios import TINY, scenario, small_store, twenty
from tests.durability.soak import SOAK, Tally, some, times
from tests.durability.test_kills import work
from tests.faults import Call, WatchedDisk, contents

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
NAMES = (
    *("migrate", "resume a migration", "derive", "derive more", "resume a derive", "recompute"),
    *("build", "append to a build"),
)
SIGNALS = 3  # each once
_CALLS = 6  # of each run


class SignallingDisk(WatchedDisk):
    """Has a signal sent to the process at its nth call."""

    def __init__(self, at: int, number: signal.Signals) -> None:
        super().__init__()
        self.at, self.number = at, number

    def before(self, call: Call) -> None:
        if len(self.calls) == self.at:
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, self.number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers with which a process begins; what a test sets is undone."""
    before = {number: signal.getsignal(number) for number in CODES}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def command(name: str, folder: Path) -> list[str]:
    """Say a scenario's command as a user would."""
    if "migrat" in name:
        return ["migrate", "--derived-dir", f"{folder}/output"]
    if "build" in name:
        words = ["build", f"{folder}/images", "--recipe", f"{folder}/small.toml", "--device", "cpu"]
        words += ["--output-dir", f"{folder}/output", "--encoders", "sketch", "--batch-size", "2"]
        return [*words, "--shard-size", "1", "--sha256" if name == "build" else "--append"]
    words = ["derive", f"{folder}/images", "--derived-dir", f"{folder}/output"]
    words += ["--encoders", "sketch", "--batch-size", "2"]
    if name == "recompute":
        words += ["--captions", f"{folder}/captions.csv", "--recompute", "vae", "--recompute", "t5"]
    return words


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_at_any_call_ends_the_run_in_good_order(
    name: str, folder: Path, tally: Tally
) -> None:
    case = scenario(name, folder)
    words = command(name, folder)
    case.reset()
    with using(unbroken := WatchedDisk()):
        done = main(words)
    assert contents(case.output) == case.expected
    for turn, at in enumerate(some(range(1, len(unbroken.calls) + 1), _CALLS)):
        for number in CODES if SOAK else [tuple(CODES)[turn % len(CODES)]]:
            case.reset()
            with using(disk := SignallingDisk(at, number)):
                code = main(words)
            label = f"{number.name} at call {at}, {disk.calls[at - 1]}"
            assert code == CODES[number], label
            assert_merged(case.output, case.start)
            assert_arrays_are_whole(case.output, case.start, case.expected)
            assert_shards_are_whole(case.output, case.start, case.expected)
            assert_manifest_speaks_true(case.output)
            with using(WatchedDisk()):
                assert main(words) == done, label
            assert contents(case.output) == case.expected, label
            tally(signals_at_a_call=1)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_is_told_as_one_object(
    number: signal.Signals, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = scenario("migrate", folder)
    case.reset()
    with using(SignallingDisk(5, number)):
        assert main([*command("migrate", folder), "--json"]) == CODES[number]
    told = capsys.readouterr()
    words = "Interrupted; run the same command to continue"
    assert json.loads(told.out)["message"] == words
    assert told.err.splitlines()[-1] == words


SLEEPING = """
import os, sys, time
from shardwright.__main__ import main
from shardwright.encoders.sketch import Descriptor

name, nth = sys.argv.pop(1), int(sys.argv.pop(1))
method, calls = getattr(Descriptor, name), []

def slow(*inputs):
    calls.append(name)
    if len(calls) == nth:
        os.write(1, b"sleeps\\n")
        time.sleep(600)
    return method(*inputs)

setattr(Descriptor, name, slow)
main()
"""


MOMENTS = {
    "while a model is loaded": ("describe", 1, False),
    "while it is tried out": ("encode", 1, False),
    "while it encodes": ("encode", 4, True),
}


@pytest.mark.parametrize(
    ("number", "moment"),
    [*itertools.product(CODES, MOMENTS)] if SOAK else [*zip(CODES, MOMENTS, strict=True)],
)
def test_a_model_at_work_is_interrupted_at_once(
    number: signal.Signals, moment: str, folder: Path
) -> None:
    method, nth, at_work = MOMENTS[moment]
    images, derived = make_images(folder / "images", 4, TINY), folder / "derived"
    words = ["derive", images, "--derived-dir", derived, "--encoders", "sketch", "--batch-size=1"]
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPING, method, str(nth), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sleeps\n"
        time.sleep(0.3)  # Python may sleep through one that comes as it falls asleep
        process.send_signal(number)
        try:
            _, told = process.communicate(timeout=150)
        finally:
            process.kill()
    assert process.returncode == CODES[number], told
    assert "Traceback" not in told
    note = ""
    if at_work:
        assert_merged(derived, None)
        saved = quantity(len(store_records(derived)), "images")  # of two, if in groups of their own
        note = f"; {saved} saved. Run the same command to continue"
    else:
        assert not derived.exists()
    assert told.splitlines()[-1] == f"Interrupted{note}"
    sketch(images, derived)
    sketch(images, folder / "unbroken")
    assert contents(derived) == contents(folder / "unbroken")


HANGING = """
import os, sys, threading, time
from shardwright.cli.main import main
from shardwright.storage.disk import Disk
from shardwright.storage.files import using

class Hangs(Disk):
    def fsync(self, fd):
        if threading.current_thread() is not threading.main_thread():
            os.write(1, b"hangs\\n")
            time.sleep(60)

with using(Hangs()):
    main(sys.argv[1:])
"""


def test_a_second_interrupt_ends_a_process_that_hangs(folder: Path) -> None:
    images = make_images(folder / "images", 2, TINY)
    words = ["derive", images, "--derived-dir", folder / "output", "--encoders", "sketch"]
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, *map(str, words)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        try:
            time.sleep(0.3)  # Python may sleep through one that comes as it falls asleep
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert process.returncode == -signal.SIGINT
        finally:
            process.kill()


def assert_merged(output: Path, start: Contents | None) -> None:
    """There is no journal, unless one was there and the run was not yet done with it."""
    assert JOURNAL not in contents(output) or JOURNAL in (start or ())


def is_at_work(process: BaseProcess, output: Path) -> bool:
    """Whether a process has the lock, or has ended already."""
    lock = output / STATE_FOLDER / "lock"
    return not process.is_alive() or (lock.exists() and f" {process.pid} " in lock.read_text())


@pytest.mark.timeout(60 * times(2))
@pytest.mark.parametrize("name", ["migrate", "derive"])
def test_a_signal_at_any_moment_of_a_real_process(name: str, folder: Path, tally: Tally) -> None:
    job = work(name, folder)
    draw = random.Random(7)
    sent = 0
    while sent < times(SIGNALS):
        number = tuple(CODES)[sent % len(CODES)]
        before = contents(job.output)
        process = processes.start(job.command, job.told)
        wait_until(partial(is_at_work, process, job.output))
        time.sleep(job.seconds * draw.uniform(0, 0.8))
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        process.join()
        told = job.told.read_text()
        assert "Traceback" not in told, told
        if process.exitcode in (job.done, -number):  # it had ended, and at most was telling so
            assert contents(job.output) == job.expected
            job.reset()
            continue
        assert process.exitcode == CODES[number], told
        assert_merged(job.output, before)
        sent += 1
    job.finish()
    tally(signals_to_a_process=sent)


@pytest.mark.timeout(60 * times(2))
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_at_any_moment_of_a_pack(workers: int, folder: Path, tally: Tally) -> None:
    store, output = small_store(folder / "derived", twenty(60)), folder / "shards"
    pack(derived_dir=store.root, output_dir=folder / "unbroken", shard_size=3, workers=1)
    command = [
        *(*COMMAND, "pack", "--resume", "--shard-size", "3", "--workers", str(workers)),
        *("--derived-dir", str(store.root), "--output-dir"),
    ]
    started = time.monotonic()
    subprocess.run([*command, str(folder / "timed")], check=True, capture_output=True)
    usual = time.monotonic() - started
    draw = random.Random(workers)
    for sent in range(times(SIGNALS)):
        number = tuple(CODES)[sent % len(CODES)]
        process = subprocess.Popen(
            [*command, str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert process.stderr.readline().startswith("scan: ")
        time.sleep(usual * draw.uniform(0, 0.5))
        offspring = children(process.pid) if process.poll() is None else []
        process.send_signal(number)
        _, told = process.communicate()
        assert process.returncode in (0, -number, CODES[number]), told
        assert "Traceback" not in told, told
        assert not any(map(is_alive, offspring))
        assert not list(output.glob("bucket_*/*.tmp"))
    subprocess.run([*command, str(output)], check=True, capture_output=True)
    assert contents(output) == contents(folder / "unbroken")
    tally(signals_to_a_process=times(SIGNALS))
