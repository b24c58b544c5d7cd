"""Processes of this machine, which draw tasks when they have room; encoders on devices are such."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, ClassVar, Self

from shardwright import interrupts
from shardwright.engine import DONE, DeviceLostError, Done, Message, Task
from shardwright.engine.local import (
    DIED,
    KEPT_MEMORY,
    MESSAGE,
    cores,
    failed,
    fork,
    kill,
    nameless_file,
    receive,
    signals_blocked,
    spawn,
)
from shardwright.engine.pool import (
    LEFT,
    MEMORY,
    READY,
    WANT,
    Death,
    Ended,
    Seat,
    gone,
    none_left,
    run_on,
)
from shardwright.errors import ShardwrightError

__all__ = ["THREADS", "Death", "Devices", "Process", "alone", "serve"]

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LIMITS = "raise the limits (ulimit -u, ulimit -n) or free memory"


@dataclass(frozen=True)
class Devices:
    """An engine of one process for each device, which never outlive this one.

    A single device is this process's own.
    """

    is_here: ClassVar = True  # whether its workers are processes of this machine

    names: tuple[str, ...]

    @property
    def cores_each(self) -> int:
        """Count the cores that each worker may use beside its device."""
        return max(1, cores() // len(self.names))

    def run(
        self,
        function: Callable[[str, Iterator[Task]], Iterator[Message | Done]],
        tasks: Iterable[Task],
        instead: Callable[[Task, Death], Task | None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Generator[Message, None, None]:
        """Run the function once on each device, and yield what it yields, in the order it arrives.

        It is called with the device and an iterator of tasks, and yields DONE once for each task,
        in the order in which it drew them. Any of its threads may draw, also ahead. Function,
        tasks and messages are small and picklable.

        When a worker dies, its unfinished tasks are run again. The oldest one may be the cause:
        ``instead`` is called with it, after all messages of the worker, and returns the task to
        run in its place, or None if nothing is left of it. Without ``instead`` that is an error.
        If the function raises DeviceLostError, the others do its tasks, and ``warn`` gets a text.

        An error of the function is raised here, and ends the others; close the generator to end
        them early.
        """
        waiting = iter(tasks)
        first = list(islice(waiting, 1)) if len(self.names) > 1 else []
        if first:
            yield from run_on(Processes(self.names), function, chain(first, waiting), instead, warn)
        else:
            yield from _here(function, self.names[0], waiting)


def _here(
    function: Callable[[str, Iterator[Task]], Iterator[Message | Done]],
    device: str,
    tasks: Iterator[Task],
) -> Iterator[Message]:
    messages = function(device, tasks)
    try:
        with alone(device):
            for message in messages:
                interrupts.check()
                if message is not DONE:
                    yield message
    finally:
        if isinstance(messages, Generator):  # not only when a traceback no longer holds it
            messages.close()


@contextmanager
def alone(device: str) -> Iterator[None]:
    """Use a device that has no other beside it: if it is gone, the work ends."""
    try:
        yield
    except DeviceLostError as error:
        raise none_left(gone(device, error)) from error


@dataclass(eq=False)
class Process:
    """The process of a worker, as the one that started it sees it."""

    pid: int
    connection: Connection
    errors: int  # the file that is its standard error while it starts

    @classmethod
    def start(cls, environment: Mapping[str, str], *, forks: bool = False) -> Self:
        """Start a process that runs ``serve``; call it with signals blocked."""
        with ExitStack() as undo:
            ours, theirs = Pipe()
            undo.enter_context(ours)
            errors = nameless_file()
            undo.callback(os.close, errors)
            # What a worker prints is not what this program prints for others to read.
            others = ((2, 1), (errors, 2))
            with theirs:
                if forks:
                    pid = fork(serve, theirs.fileno(), others)
                else:
                    pid = spawn(__name__, theirs.fileno(), others, environment)
            undo.pop_all()
        return cls(pid, ours, errors)

    def end(self) -> Ended:
        """End it, if it has not ended by itself; give what is left of it."""
        (code,) = kill([self.pid])
        errors = os.pread(self.errors, 1 << 16, 0).decode(errors="replace").strip()
        self.connection.close()
        os.close(self.errors)
        return Ended(code, errors.splitlines())


class Processes:
    """Processes of this machine, by their places; a ``Crew``, as ``actors.Actors`` is."""

    grows = False  # whether other places may open when none is left

    def __init__(
        self, names: tuple[str, ...], advice: str = MEMORY, *, forks: Callable[[], bool] = bool
    ) -> None:
        self.unopened = [Seat(name, name, advice) for name in names]
        self.forks = forks  # says whether one begins as a copy of this process
        self.cpus = names.count("cpu")
        self.processes: dict[Seat, Process] = {}
        self.places: dict[int, Seat] = {}  # by the file descriptors of their connections
        self.poll = select.poll()

    def opened(self) -> Iterable[Seat]:
        """Give the places that have opened since the last call."""
        places, self.unopened = self.unopened, []
        return places

    def start(self, place: Seat) -> None:
        """Start a worker, and do not wait for it."""
        environment = os.environ | KEPT_MEMORY
        if place.device == "cpu" and self.cpus > 1:
            threads = str(max(1, cores() // self.cpus))
            environment = dict.fromkeys(THREADS, threads) | environment
        try:
            with signals_blocked():  # until the worker is known here
                process = self.processes[place] = Process.start(environment, forks=self.forks())
                self.places[process.connection.fileno()] = place
                self.poll.register(process.connection, select.POLLIN)
        except OSError as error:
            worker = f"the worker on {place.device}" if place.device else "a worker process"
            what = f"{worker} did not start: {error.strerror}"
            raise ShardwrightError(what, fix=_LIMITS) from error

    def send(self, place: Seat, content: object) -> None:
        """Send something to a worker; if it is dead, that is received next."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.processes[place].connection.send(content)

    def receive(self) -> Iterator[tuple[Seat, str, Any]]:
        """Give what workers say, each with its kind; wait at most ``interrupts.POLL`` for it."""
        for fd, _ in self.poll.poll(interrupts.POLL * 1000):
            place = self.places[fd]
            kind, content = receive(self.processes[place].connection)
            yield place, kind, self._remove(place).end() if kind == DIED else content

    def stop(self, place: Seat) -> None:
        """End a worker that is of no more use."""
        if place in self.processes:  # else it ended by itself
            self._remove(place).end()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        kill([process.pid for process in self.processes.values()])
        for place in list(self.processes):
            self.stop(place)

    def _remove(self, place: Seat) -> Process:
        process = self.processes.pop(place)
        self.poll.unregister(process.connection)
        del self.places[process.connection.fileno()]
        return process


class _Tasks(Iterator[Any]):
    """The worker's side of a connection: it draws tasks, while other threads may send."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sending, self.drawing = Lock(), Lock()
        self.ended = False

    def send(self, kind: str, content: object = None) -> None:
        with self.sending:
            self.connection.send((kind, content))

    def __next__(self) -> Any:  # noqa: ANN401
        with self.drawing:
            if not self.ended:
                self.send(WANT)
                for task in self.connection.recv():
                    return task
                self.ended = True
            raise StopIteration


def serve(connection: Connection) -> None:
    """Receive a function, and run it on the tasks that it draws; in a worker."""
    # Programs that a library starts have our standard input: it must not be the connection.
    tasks = _Tasks(Connection(os.dup(connection.fileno())))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), connection.fileno())
    try:
        tasks.send(READY)
        function, device = tasks.connection.recv()
        os.ftruncate(2, 0)  # what was printed so far did no harm
        os.dup2(1, 2)
        for message in function(device, tasks):
            tasks.send(MESSAGE, message)
        tasks.send(LEFT)
    except Exception as error:  # of the function; or the parent is gone, and this goes nowhere
        tasks.send(*failed(error))
