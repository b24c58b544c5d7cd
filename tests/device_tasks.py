"""What workers on devices do in tests. A module of its own, because a fresh process imports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread, Timer

from shardwright import StorageError
from shardwright.engine import DONE, DeviceLostError, Done
from shardwright.engine.local import signals_blocked, spawn

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def spell(device: str, tasks: Iterator[str]) -> Iterator[str | Done]:
    for word in tasks:
        yield from word
        yield DONE


def who(device: str, tasks: Iterator[object]) -> Iterator[tuple[str, int] | Done]:
    for _ in tasks:
        yield device, os.getpid()
        yield DONE


def environment(device: str, tasks: Iterator[object]) -> Iterator[tuple[str, ...] | Done]:
    for _ in tasks:
        yield device, *(os.environ.get(name, "") for name in THREADS)
        time.sleep(60)
        yield DONE


def large(device: str, tasks: Iterator[bytes]) -> Iterator[bytes | Done]:
    for task in tasks:
        yield task * 2
        yield DONE


def cut(device: str, tasks: Iterator[int]) -> Iterator[tuple[int, bytes] | Done]:
    """Die while a message is sent, which the reader does not take in time."""
    for task in tasks:
        if task == 0:
            yield os.getpid(), b"cut"
            Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        yield os.getpid(), bytes(3_000_000)
        yield DONE


def hang(device: str, tasks: Iterator[object]) -> Iterator[int | Done]:
    for _ in tasks:
        yield os.getpid()
        time.sleep(60)
        yield DONE


def spin(device: str, tasks: Iterator[object]) -> Iterator[int | Done]:
    """Be busy, so that no closed connection would be noticed."""
    for _ in tasks:
        yield os.getpid()
        while True:
            pass
        yield DONE


def parents(device: str, tasks: Iterator[object]) -> Iterator[int | Done]:
    """Have a process of its own, as one that decodes."""
    for _ in tasks:
        ours, theirs = os.pipe()
        with signals_blocked():
            pid = spawn("tests.device_tasks", ours)
        os.close(ours)
        yield os.getpid()
        yield pid
        time.sleep(60)
        os.close(theirs)


def serve(connection: object) -> None:
    time.sleep(60)


def programs(device: str, tasks: Iterator[object]) -> Iterator[int | Done]:
    """Start a program that lives on, and die."""
    for task in tasks:
        if task == "die":
            code = "import sys, time; sys.stdin.read(); time.sleep(60)"
            with subprocess.Popen([sys.executable, "-c", code]) as process:
                yield process.pid
                time.sleep(0.3)
                os._exit(7)
        yield DONE


def chatter(device: str, tasks: Iterator[object]) -> Iterator[int | Done]:
    for _ in tasks:
        print("out of", device, flush=True)
        print("err of", device, file=sys.stderr)
        yield DONE


def dies_at_the_end(device: str, tasks: Iterator[int]) -> Iterator[int | Done]:
    for task in tasks:
        yield task
        yield DONE
    os._exit(7)


def throw(device: str, tasks: Iterator[Exception]) -> Iterator[Done]:
    for error in tasks:
        raise error
        yield DONE


def fail(device: str, tasks: Iterator[int]) -> Iterator[int | Done]:
    for task in tasks:
        yield task
        if task == 3:
            raise StorageError("shard 3: no")
        yield DONE


def say_unsendable(device: str, tasks: Iterator[object]) -> Iterator[object]:
    for _ in tasks:
        yield lambda: None
        yield DONE


def too_few(device: str, tasks: Iterator[object]) -> Iterator[Done]:
    for _ in tasks:
        pass
    yield DONE


def too_many(device: str, tasks: Iterator[object]) -> Iterator[Done]:
    for _ in tasks:
        yield DONE
        yield DONE


def too_early(device: str, tasks: Iterator[object]) -> Iterator[Done]:
    for _ in tasks:
        yield DONE
        return


def slow_start(device: str, tasks: Iterator[object]) -> Iterator[str | Done]:
    if device == "slow":
        time.sleep(60)
    for _ in tasks:
        yield device
        yield DONE


def drawn_in_a_thread(device: str, tasks: Iterator[int]) -> Iterator[tuple[str, int] | Done]:
    """Finish a task only when the next one has been drawn, or there is none."""
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(next, tasks, None)
        while (task := drawn.result()) is not None:
            drawn = pool.submit(next, tasks, None)
            yield device, task
            drawn.result()
            yield DONE


@dataclass(frozen=True)
class Talking:
    """Talks on one device while a draw there waits, for a task that another has not finished."""

    marks: Path

    def __call__(self, device: str, tasks: Iterator[int]) -> Iterator[str | Done]:
        next(tasks)
        (self.marks / device).touch()
        _wait(lambda: len(list(self.marks.iterdir())) > 1)
        if device == "first":
            yield DONE
            with ThreadPoolExecutor(1) as pool:
                drawn = pool.submit(next, tasks, None)
                while not drawn.done():
                    yield "still here"
                    time.sleep(0.01)
        else:
            _wait((self.marks / "go").exists)
            yield DONE
        assert next(tasks, None) is None


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def drawn_ahead(tasks: Iterator[int], count: int) -> Iterator[int]:
    """Keep so many tasks in a queue, and one more in the hand of the thread that fills it."""
    queue: Queue[list[int]] = Queue(count)

    def draw() -> None:
        for task in tasks:
            queue.put([task])
        queue.put([])

    Thread(target=draw, daemon=True).start()
    while drawn := queue.get():
        yield drawn[0]


@dataclass(frozen=True)
class Faulty:
    """Reports each task; does something else once, or each time, when it comes to some of them.

    It draws some tasks ahead, in another thread.
    """

    marks: Path
    do: Callable[[str, Path], None]
    on: frozenset[int]
    times: int = 1
    ahead: int = 0
    seconds: float = 0.02

    def __call__(self, device: str, tasks: Iterator[int]) -> Iterator[tuple[str, int] | Done]:
        for task in drawn_ahead(tasks, self.ahead) if self.ahead else tasks:
            yield "start", task
            time.sleep(self.seconds)
            if task in self.on and self._count(task) < self.times:
                self.do(device, self.marks)
            yield "end", task
            yield DONE

    def _count(self, task: int) -> int:
        """Say how often this was asked before, by any worker."""
        count = len(list(self.marks.glob(f"{task}.*")))
        (self.marks / f"{task}.{count}").touch()
        return count


def killed(device: str, marks: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits(device: str, marks: Path) -> None:
    os._exit(7)


def crashes(device: str, marks: Path) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def loses(device: str, marks: Path) -> None:
    raise DeviceLostError("fell off the bus")


def loses_first(device: str, marks: Path) -> None:
    """Lose one device; the others wait for that."""
    if device == "first":
        (marks / "lost").touch()
        loses(device, marks)
    _wait((marks / "lost").exists)


@dataclass(frozen=True)
class DeadAtStart:
    """Dies before it draws, the first times, on one device; the others wait for that."""

    marks: Path
    device: str
    times: int

    def __call__(self, device: str, tasks: Iterator[int]) -> Iterator[int | Done]:
        if device == self.device and (count := self._deaths()) < self.times:
            (self.marks / str(count)).touch()
            os._exit(7)
        for task in tasks:
            _wait(lambda: self._deaths() == self.times)
            yield task
            yield DONE

    def _deaths(self) -> int:
        return len(list(self.marks.iterdir()))


class Unloadable:
    """Ends the process that receives it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _unload, ()

    def __call__(self, device: str, tasks: Iterator[int]) -> Iterator[int]:
        yield from tasks


def _unload() -> None:
    print("first line\nno kernel image is available", file=sys.stderr)
    os._exit(3)


@dataclass(frozen=True)
class Paced:
    """Reports each task with its process, some drawn ahead; to be killed from outside."""

    ahead: int

    def __call__(self, device: str, tasks: Iterator[int]) -> Iterator[tuple[int, int] | Done]:
        for task in drawn_ahead(tasks, self.ahead):
            yield os.getpid(), -1
            time.sleep(0.005 * (task % 4))
            yield os.getpid(), task
            yield DONE
