"""Tasks on the cores of this machine: in this process, or in several that it starts."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self

from shardwright import interrupts
from shardwright.engine import DONE, Message, Task
from shardwright.errors import ShardwrightError
from shardwright.validate import integer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MESSAGE, FAILED = "message", "failed"  # what a worker sends, each with its content
DIED = "died"  # what is received of one that sends no more
# For processes that read pictures: memory is kept for the next one. To get it from the system took
# up to a third of the time.
KEPT_MEMORY = {
    "PILLOW_BLOCKS_MAX": "4",  # of 16 MiB
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 27),
    "MALLOC_TOP_PAD_": str(1 << 25),
}
CORES = "SHARDWRIGHT_CORES"  # set for workers of a cluster: as many as were reserved for them
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SERVER = "shardwright.engine.worker"
_MEMORY = "free memory, and run the same command again"
_FRESH = """\
import sys
sys.path[:] = sys.argv[3:]
from importlib import import_module
from shardwright.engine.worker import work
work(int(sys.argv[1]), 0, import_module(sys.argv[2]).serve)
"""


def cores() -> int:
    """Count the cores this process may use."""
    if CORES in os.environ:
        return int(os.environ[CORES])
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cores_used() -> Callable[[], float]:
    """Measure the part of the time in which the cores work for this process and its children.

    What is returned gives it: little if they wait for a disk, a network or another machine.
    """
    began, before = time.monotonic(), sum(os.times()[:4])
    return lambda: (sum(os.times()[:4]) - before) / max(time.monotonic() - began, 1e-6) / cores()


@dataclass(frozen=True)
class Local:
    """An engine of some processes, which never outlive this one; one worker is this process.

    They do not run the caller's script again, so it needs no ``__main__`` guard.
    """

    workers: int
    advice: str = field(default=_MEMORY, compare=False)  # if one dies because memory runs out

    @classmethod
    def of(cls, workers: int | None) -> Self:
        """Take the number of workers asked for, or one for each core."""
        count = cores() if workers is None else integer("--workers", workers, least=1)
        return cls(count, "run again with fewer --workers")

    def run(
        self,
        function: Callable[[Task], Iterator[Message]],
        tasks: Iterable[Task],
        instead: Callable[[Task, WorkerDiedError], Task] | None = None,
    ) -> Generator[Message, None, None]:
        """Run each task in one of the workers, or a single task here; see ``Engine``.

        With ``instead`` also a single task runs in a worker, because it may kill its process.
        """
        waiting = iter(tasks)
        first = list(islice(waiting, self.workers))
        if len(first) < 2 and instead is None:
            for task in chain(first, waiting):
                for message in function(task):
                    interrupts.check()
                    yield message
            return
        pool = _Pool(function, instead, self.advice)
        try:
            yield from pool.run(first, waiting)
        finally:
            pool.kill()


class WorkerDiedError(ShardwrightError):
    """A process of this engine died; ``how`` says by what."""

    how = "ended"


class InWorker(Exception):  # noqa: N818 - it is where an error was raised
    """The traceback of an error in a worker."""


class _Worker(NamedTuple):
    pid: int
    connection: Connection


class _Pool(Generic[Task, Message]):
    """Some processes that run one function, by the file descriptors of their connections."""

    def __init__(
        self,
        function: Callable[[Task], Iterator[Message]],
        instead: Callable[[Task, WorkerDiedError], Task] | None,
        advice: str,
    ) -> None:
        self.function, self.instead, self.advice = function, instead, advice
        self.workers: dict[int, _Worker] = {}
        self.tasks: dict[int, Task] = {}  # that they have, or had last
        self.poll = select.poll()

    def run(self, first: list[Task], waiting: Iterator[Task]) -> Iterator[Message]:
        """Start a worker for each of the first tasks; one that is done gets a task that waits."""
        for fd, task in zip(self._start(len(first)), first, strict=True):
            self._send(fd, task)
        busy = len(first)
        while busy:
            interrupts.check()
            for fd, _ in self.poll.poll(interrupts.POLL * 1000):
                kind, content = receive(self.workers[fd].connection)
                if kind == FAILED:
                    raise failure(*content)
                if kind == DIED:
                    self._replace(fd)
                    continue
                if content is not DONE:
                    yield content
                    continue
                busy -= 1
                for task in islice(waiting, 1):
                    self._send(fd, task)
                    busy += 1

    def kill(self) -> None:
        """End all workers, whatever they are doing."""
        kill([pid for pid, _ in self.workers.values()])
        for _, connection in self.workers.values():
            connection.close()

    def _start(self, count: int) -> list[int]:
        from multiprocessing import Pipe  # here, because one worker does not need it

        # A task may read from an object store, and the client of some does not work in a copy.
        may = may_fork_to_read() and "obstore" not in sys.modules
        forks = _may_fork() if self.instead is None else may
        start = _fork if forks else partial(spawn, _SERVER)
        started = []
        with signals_blocked():  # until all workers are known here
            for _ in range(count):
                ours, theirs = Pipe()
                self.workers[ours.fileno()] = _Worker(start(theirs.fileno()), ours)
                theirs.close()
                self.poll.register(ours, select.POLLIN)
                started.append(ours.fileno())
        return started

    def _send(self, fd: int, task: Task) -> None:
        self.tasks[fd] = task
        try:
            self.workers[fd].connection.send((self.function, task))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(fd) from None

    def _replace(self, fd: int) -> None:
        """Start another worker in place of one that died, with what is to be done instead."""
        death, task = self._death(fd), self.tasks.pop(fd)
        if self.instead is None:
            raise death
        for new in self._start(1):
            self._send(new, self.instead(task, death))

    def _death(self, fd: int) -> WorkerDiedError:
        pid, connection = self.workers.pop(fd)
        self.poll.unregister(connection)
        connection.close()
        code = exit_code(pid)
        error = WorkerDiedError(
            f"a worker process died (exit code {code})",
            fix=f"if the system killed it because memory ran out, {self.advice}",
        )
        error.how = ended_by(code)
        return error


def ended_by(code: int | None) -> str:
    """Say how a process ended."""
    if code is not None and code < 0:
        return f"died by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"


def receive(connection: Connection) -> tuple[str, Any]:
    """Receive what a worker sends next: its kind and its content."""
    try:
        kind, content = connection.recv()
    except (EOFError, OSError):  # OSError: it died in the middle of a message
        return DIED, None
    return kind, content


def failure(error: Exception, trace: str) -> Exception:
    """Give an error of a worker, to raise here, with its traceback there as its cause."""
    error.__cause__ = InWorker(trace)
    return error


def _may_fork() -> bool:
    """Whether a fork is safe here: a lock that another thread holds would never open in it.

    It starts at once, where a fresh process takes a tenth of a second to import what it needs.
    """
    with suppress(OSError):
        return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    return False


def may_fork_to_read() -> bool:
    """Whether a fork is safe for a process that only reads pictures on this machine.

    Threads that libraries like OpenBLAS have for their own work hold nothing that it needs; those
    of Ray may.
    """
    alone = threading.active_count() == 1 and "ray" not in sys.modules
    return sys.platform == "linux" and alone


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
    return fork(lambda: work(parent, connection, serve))


def fork(then: Callable[[], NoReturn]) -> int:
    """Start a copy of this process, which does something else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: may_fork_to_read
        pid = os.fork()
    if pid == 0:
        then()
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
    # The connection last: where a program has no standard input, one of the others may be 0.
    actions = [(os.POSIX_SPAWN_DUP2, fd, there) for fd, there in (*others, (connection, 0))]
    return os.posix_spawn(sys.executable, arguments, environment, file_actions=actions)


def nameless_file() -> int:
    """Open a file without a name: in memory where the system has that, or else on the disk."""
    if sys.platform == "linux":
        return os.memfd_create("shardwright")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def kill(pids: Sequence[int]) -> list[int | None]:
    """End processes that were started here, whatever they are doing, and give their exit codes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [exit_code(pid) for pid in pids]


def exit_code(pid: int) -> int | None:
    """Wait until a process that was started here has ended."""
    with suppress(ChildProcessError):  # where SIGCHLD is ignored
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None
