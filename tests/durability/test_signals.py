"""SIGINT, SIGTERM and SIGHUP at every call of the disk, and at any moment of a real process.

What was made is merged, the exit code tells, and the next run ends in the bytes of an unbroken one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import thread
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import pytest

from shardwright import interrupts, pack
from shardwright.cli.main import main
from shardwright.deriving import pipeline, run
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.files import using
from shardwright.store import journal
from tests.commands import wait_until
from tests.derive.pictures import make_images, sketch
from tests.durability import processes
from tests.durability.folders import JOURNAL, Contents, assert_arrays_are_whole
from tests.durability.scenarios import TINY, scenario
from tests.durability.soak import SOAK, Tally, times
from tests.durability.test_kills import work
from tests.faults import Call, WatchedDisk, contents
from tests.stores import Store

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
NAMES = ("migrate", "resume a migration", "derive", "derive more", "resume a derive", "recompute")
SIGNALS = 6
BLOCKS = {str(module.__file__) for module in (contextlib, interrupts, journal, pipeline, run)}
# Where a thread comes and goes: what is raised in a callback of weakref is lost.
THREADS = {str(module.__file__) for module in (files, interrupts, thread, weakref)}


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
    for at in range(1, len(unbroken.calls) + 1, 1 if SOAK else 3):
        for number in CODES if SOAK else [tuple(CODES)[at // 3 % len(CODES)]]:
            case.reset()
            with using(disk := SignallingDisk(at, number)):
                code = main(words)
            label = f"{number.name} at call {at}, {disk.calls[at - 1]}"
            assert code == CODES[number], label
            assert_merged(case.output, case.start)
            assert_arrays_are_whole(case.output, case.start, case.expected)
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
    assert json.loads(told.out)["message"] == "interrupted"
    assert told.err.splitlines()[-1] == "interrupted"


class SignallingSteps:
    """Traces some modules, and sends a signal at the nth line; then, maybe, at more."""

    def __init__(self, first: int, step: int = 0, modules: Collection[str] = BLOCKS) -> None:
        self.modules = modules
        self.lines = 0
        self.at = range(first, 1 << 20, step) if step else [first]

    def __call__(self, frame: FrameType, event: str, _: object) -> SignallingSteps | None:
        code = frame.f_code
        if code.co_filename not in self.modules and code is not threading.Thread.start.__code__:
            return None
        self.lines += event == "line"
        if event == "line" and self.lines in self.at:
            signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.parametrize("step", [0, 1], ids=["once", "again and again"])
def test_a_signal_between_any_two_lines_of_a_derive_ends_it_merged(
    step: int, folder: Path, tally: Tally
) -> None:
    images, output = make_images(folder / "images", 2, TINY), folder / "output"
    unbroken = SignallingSteps(0)
    with using(WatchedDisk()):
        sketch(images, folder / "unbroken", batch_size=1)
        assert traced(partial(sketch, images, output, batch_size=1), unbroken) is None
    expected = contents(folder / "unbroken")
    for at in range(1, unbroken.lines, 1 if SOAK else 8):
        shutil.rmtree(output, ignore_errors=True)
        with using(WatchedDisk()):
            once_more = partial(sketch, images, output, batch_size=1)
            raised = traced(once_more, SignallingSteps(at, step))
            assert type(raised) is KeyboardInterrupt, f"at line {at}"
            assert not (output / JOURNAL).exists(), f"at line {at}"
            once_more()
        assert contents(output) == expected, f"at line {at}"
        tally(signals_at_a_line=1)


def test_a_signal_while_threads_come_and_go_ends_a_pack(
    store: Store, output: Path, tally: Tally
) -> None:
    pack_all = partial(pack, derived_dir=store.root, output_dir=output, shard_size=4, workers=1)
    unbroken = SignallingSteps(0, modules=THREADS)
    assert traced(pack_all, unbroken) is None
    for at in range(1, unbroken.lines, 1 if SOAK else 7):
        shutil.rmtree(output, ignore_errors=True)
        raised = traced(pack_all, SignallingSteps(at, modules=THREADS))
        assert type(raised) is KeyboardInterrupt, f"at line {at}"
        assert not list(output.glob("bucket_*/*.tmp")), f"at line {at}"
        tally(signals_at_a_line=1)


def traced(work: Callable[[], object], steps: SignallingSteps) -> BaseException | None:
    """Do something under a trace, and give what it raised.

    A process ends after such a signal. This one goes on, thousands of times, so the handlers that
    a signal amid their restoring has left are put back, or each run would call those before it.
    Nor is garbage collected meanwhile: what other tests left may have callbacks, in which what a
    signal raises is lost.
    """
    before = sys.gettrace()
    handlers = {number: signal.getsignal(number) for number in CODES}
    gc.disable()
    sys.settrace(steps)
    try:
        work()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
        gc.enable()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return None


HANGING = """
import os, sys, threading, time
from shardwright.cli.main import main
from shardwright.storage.files import Disk, using

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
        if process.exitcode == job.done:  # it had ended before
            assert contents(job.output) == job.expected
            job.reset()
            continue
        assert process.exitcode == CODES[number], told
        assert_merged(job.output, before)
        sent += 1
    job.finish()
    tally(signals_to_a_process=sent)
