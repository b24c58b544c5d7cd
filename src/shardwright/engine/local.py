"""Tasks on the cores of this machine: in this process, or in several that it starts."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from shardwright import interrupts
from shardwright.engine import Message, Task
from shardwright.errors import ShardwrightError
from shardwright.validate import integer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MESSAGE, DONE, FAILED = "message", "done", "failed"  # what a worker sends, each with its content
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SERVER = "shardwright.engine.worker"
_FRESH = """\
import sys
sys.path[:] = sys.argv[3:]
from importlib import import_module
from shardwright.engine.worker import work
work(int(sys.argv[1]), 0, import_module(sys.argv[2]).serve)
"""


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """An engine of some processes, which never outlive this one; one worker is this process.

    They do not run the caller's script again, so it needs no ``__main__`` guard.
    """

    workers: int

    @classmethod
    def of(cls, workers: int | None) -> Self:
        """Take the number of workers asked for, or one for each core."""
        return cls(cores() if workers is None else integer("--workers", workers, least=1))

    def run(
        self, function: Callable[[Task], Iterator[Message]], tasks: Iterable[Task]
    ) -> Generator[Message, None, None]:
        """Run each task in one of the workers, or a single task here; see ``Engine``."""
        waiting = iter(tasks)
        first = list(islice(waiting, self.workers))
        if len(first) < 2:
            for task in chain(first, waiting):
                for message in function(task):
                    interrupts.check()
                    yield message
            return
        pool = _Pool(function)
        try:
            yield from pool.run(first, waiting)
        finally:
            pool.kill()


class InWorker(Exception):  # noqa: N818 - it is where an error was raised
    """The traceback of an error in a worker."""


class _Worker(NamedTuple):
    pid: int
    connection: Connection


class _Pool(Generic[Task, Message]):
    """Some processes that run one function, by the file descriptors of their connections."""

    def __init__(self, function: Callable[[Task], Iterator[Message]]) -> None:
        self.function = function
        self.workers: dict[int, _Worker] = {}
        self.poll = select.poll()

    def run(self, first: list[Task], waiting: Iterator[Task]) -> Iterator[Message]:
        """Start a worker for each of the first tasks; one that is done gets a task that waits."""
        self._start(len(first))
        for fd, task in zip(self.workers, first, strict=True):
            self._send(fd, task)
        busy = len(first)
        while busy:
            interrupts.check()
            for fd, _ in self.poll.poll(interrupts.POLL * 1000):
                kind, content = self._receive(fd)
                if kind == MESSAGE:
                    yield content
                    continue
                busy -= 1
                for task in islice(waiting, 1):
                    self._send(fd, task)
                    busy += 1

    def kill(self) -> None:
        """End all workers, whatever they are doing."""
        for pid, _ in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid, connection in self.workers.values():
            exit_code(pid)
            connection.close()

    def _start(self, count: int) -> None:
        from multiprocessing import Pipe  # here, because one worker does not need it

        start = _fork if _may_fork() else partial(spawn, _SERVER)
        with signals_blocked():  # until all workers are known here
            for _ in range(count):
                ours, theirs = Pipe()
                self.workers[ours.fileno()] = _Worker(start(theirs.fileno()), ours)
                theirs.close()
                self.poll.register(ours, select.POLLIN)

    def _send(self, fd: int, task: Task) -> None:
        try:
            self.workers[fd].connection.send((self.function, task))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(fd) from None

    def _receive(self, fd: int) -> tuple[str, Any]:
        try:
            kind, content = self.workers[fd].connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death(fd) from None
        if kind == FAILED:
            error, trace = content
            raise error from InWorker(trace)
        return kind, content

    def _death(self, fd: int) -> ShardwrightError:
        pid, connection = self.workers.pop(fd)
        connection.close()
        return ShardwrightError(
            f"a worker process died (exit code {exit_code(pid)})",
            fix="if the system killed it because memory ran out, run again with fewer --workers",
        )


def _may_fork() -> bool:
    """Whether a fork is safe here: a lock that another thread holds would never open in it.

    It starts at once, where a fresh process takes a tenth of a second to import what it needs.
    """
    with suppress(OSError):
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    return False


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Let signals wait; in processes that are started here they stay blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(connection: int) -> int:
    from shardwright.engine.worker import serve, work

    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        work(parent, connection, serve)
    return pid


def spawn(
    server: str,
    connection: int,
    others: Iterable[tuple[int, int]] = (),
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Start a fresh process, in which ``serve`` of a module is given a connection.

    Other file descriptors are given to it too, each with the one that it becomes there.
    """
    import subprocess

    # Private, but what multiprocessing starts its own processes with.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    arguments = [sys.executable, *flags, "-c", _FRESH, str(os.getpid()), server, *sys.path]
    actions = [(os.POSIX_SPAWN_DUP2, fd, there) for fd, there in ((connection, 0), *others)]
    return os.posix_spawn(sys.executable, arguments, environment, file_actions=actions)


def exit_code(pid: int) -> int | None:
    """Wait until a process that was started here has ended."""
    with suppress(ChildProcessError):  # where SIGCHLD is ignored
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None
