"""Tasks on the cores of this machine: in this process, or in several that it starts.

On Linux the kernel kills a worker with its parent; elsewhere it ends when its connection closes. So
no forgotten process writes into a folder that a later run has locked. Ctrl-C and similar signals
are blocked in it from the start: the parent decides what they do.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self

from shardwright import interrupts
from shardwright.engine import DONE, Done, Message, Task
from shardwright.errors import ShardwrightError
from shardwright.storage.objects import works_in_a_copy
from shardwright.validate import integer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from shardwright.engine.pool import Death

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
_MEMORY = "free memory, and run the same command again"
_FRESH = """\
import sys
sys.path[:] = sys.argv[3:]
from importlib import import_module
from shardwright.engine.local import work
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
        instead: Callable[[Task, Death], Task] | None = None,
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
        # Here, because one worker does not need it.
        from shardwright.engine.devices import Processes
        from shardwright.engine.pool import run_on

        forks = _may_fork if instead is None else _may_fork_to_fetch
        crew = Processes(("",) * self.workers, self.advice, forks=forks)
        yield from run_on(crew, _Each(function), chain(first, waiting), instead, None)


@dataclass(frozen=True)
class _Each(Generic[Task, Message]):
    """Runs a function on each task that a worker draws."""

    function: Callable[[Task], Iterator[Message]]

    def __call__(self, device: str, tasks: Iterator[Task]) -> Iterator[Message | Done]:
        for task in tasks:
            yield from self.function(task)
            yield DONE


class InWorker(Exception):  # noqa: N818 - it is where an error was raised
    """The traceback of an error in a worker."""


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


def _may_fork_to_fetch() -> bool:
    """Whether a fork is safe where a task may read from an object store."""
    return may_fork_to_read() and works_in_a_copy()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Let signals wait; in processes that are started here they stay blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(
    serve: Callable[[Connection], None], connection: int, others: Iterable[tuple[int, int]]
) -> int:
    """Start a copy of this process, in which ``serve`` is given a connection; see ``spawn``."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: may_fork_to_read
        pid = os.fork()
    if pid == 0:
        work(parent, connection, serve, others)
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


def work(
    parent: int,
    connection: int,
    serve: Callable[[Connection], None],
    others: Iterable[tuple[int, int]] = (),
) -> NoReturn:
    """Serve the parent on a file descriptor; then end this process."""
    code = 1
    try:
        for fd, there in others:
            os.dup2(fd, there)
        if sys.platform == "linux":
            import ctypes  # here, to keep the start light

            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:  # else it died before we asked
            from multiprocessing.connection import Connection  # here, to keep the start light

            with suppress(BrokenPipeError, ConnectionResetError, EOFError):
                serve(Connection(connection))
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of what this process was before the fork may run


def failed(error: Exception) -> tuple[str, tuple[Exception, str]]:
    """Give what to send of an error: it and its traceback."""
    return FAILED, (portable(error), "".join(traceback.format_exception(error)))


def portable(error: Exception) -> Exception:
    """Give an error that can be sent; one that pickling would break is replaced by its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ShardwrightError(f"{type(error).__name__}: {error}")
    return error
