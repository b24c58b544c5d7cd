"""Tasks on the cores of this machine: in this process, or in several that it starts."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from shardwright import interrupts
from shardwright.engine import Message, Task
from shardwright.errors import ShardwrightError
from shardwright.validate import whole

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SAID, DONE, FAILED = "said", "done", "failed"  # what a worker sends, each with its content
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FRESH = """\
import sys
sys.path[:] = sys.argv[2:]
from shardwright.engine.worker import work
work(int(sys.argv[1]))
"""


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """An engine of some processes, which never outlive this one; one worker is this very process.

    They do not run the caller's script again, so it needs no ``__main__`` guard.
    """

    workers: int

    @classmethod
    def of(cls, workers: int | None) -> Self:
        """Take the number of workers asked for, or one for each core."""
        return cls(cores() if workers is None else whole("--workers", workers, least=1))

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


class _InWorker(Exception):  # noqa: N818 - it is where an error was raised
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
            self._send(fd, pickle.dumps(task))
        busy = len(first)
        while busy:
            interrupts.check()
            for fd, _ in self.poll.poll(interrupts.POLL * 1000):
                kind, content = self._receive(fd)
                if kind == SAID:
                    yield content
                    continue
                busy -= 1
                for task in islice(waiting, 1):
                    self._send(fd, pickle.dumps(task))
                    busy += 1

    def kill(self) -> None:
        """End all workers, whatever they are doing."""
        for pid, _ in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid, connection in self.workers.values():
            _exit_code(pid)
            connection.close()

    def _start(self, count: int) -> None:
        from multiprocessing import Pipe  # here, because one worker does not need it

        fork = _may_fork()
        for _ in range(count):
            ours, theirs = Pipe()
            # Signals wait until the worker is known here. In it they stay blocked.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                others = [ours, *(worker.connection for worker in self.workers.values())]
                pid = _fork(self.function, theirs, others) if fork else _spawn(theirs)
                self.workers[ours.fileno()] = _Worker(pid, ours)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            self.poll.register(ours, select.POLLIN)
        if not fork:
            function = pickle.dumps(self.function)
            for fd in self.workers:
                self._send(fd, function)

    def _send(self, fd: int, data: bytes) -> None:
        try:
            self.workers[fd].connection.send_bytes(data)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(fd) from None

    def _receive(self, fd: int) -> tuple[str, Any]:
        try:
            kind, content = self.workers[fd].connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death(fd) from None
        if kind == FAILED:
            error, trace = content
            raise error from _InWorker(trace)
        return kind, content

    def _death(self, fd: int) -> ShardwrightError:
        pid, connection = self.workers.pop(fd)
        connection.close()
        return ShardwrightError(
            f"a worker process died (exit code {_exit_code(pid)}); if the system killed it for "
            "memory, run again with fewer --workers"
        )


def _may_fork() -> bool:
    """Whether a fork is safe here: a lock that another thread holds would never open in it.

    It starts at once, where a fresh process takes a tenth of a second to import what it needs.
    """
    with suppress(OSError):
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    return False


def _fork(
    function: Callable[[Task], Iterator[Message]], theirs: Connection, ours: Iterable[Connection]
) -> int:
    from shardwright.engine.worker import work

    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for connection in ours:  # open here, they would hide the parent's death
            connection.close()
        work(parent, theirs.fileno(), function)
    return pid


def _spawn(theirs: Connection) -> int:
    import subprocess

    # Private, but what multiprocessing starts its own processes with.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    arguments = [sys.executable, *flags, "-c", _FRESH, str(os.getpid()), *sys.path]
    stdin = (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)
    return os.posix_spawn(sys.executable, arguments, os.environ, file_actions=[stdin])


def _exit_code(pid: int) -> int | None:
    """Wait until a worker has ended."""
    with suppress(ChildProcessError):  # where SIGCHLD is ignored
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None
