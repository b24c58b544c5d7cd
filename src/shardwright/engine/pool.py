"""Workers that draw tasks when they have room for them, wherever they live.

A place can have a worker. It is free, or it is closed for good, or it has a worker:

- STARTING until it asks for its first task; it imports torch and loads weights;
- WAITING while it asks and has no answer;
- WORKING after an answer with a task;
- ENDED after the answer END: it finishes what it has drawn and leaves, and its place is free.

``ready`` are tasks that came back from workers that died, and one for each worker that starts; the
others are still in the iterable. A worker is started on a free place as long as there is a task
for it. When there is no task, one that waits and has unfinished tasks gets END, because it may not
be able to finish them without an answer. One that has none waits on, because the tasks of another
may come back. When nothing is unfinished, all get END, and those that still start are killed.

A ``Crew`` starts the workers and carries what is said: ``devices`` has processes of this machine,
``actors`` has those of a cluster.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from shardwright import interrupts
from shardwright.engine import DONE, DeviceLostError, Done, Message, Task
from shardwright.engine.local import DIED, FAILED, failure
from shardwright.errors import ShardwrightError

if TYPE_CHECKING:
    from shardwright.engine.actors import Actors
    from shardwright.engine.devices import Processes

READY, WANT, LEFT = "ready", "want", "left"  # what else a worker sends
LOST = "lost"  # what is received of one whose place is gone with it, and why
END = ()  # the answer to WANT if there is no task; else it is a tuple of one
_STARTS = 3  # of a worker that dies before its first task
MEMORY = "use a smaller --batch-size or fewer devices"
_CONTRACT = "a function must draw all tasks, and yield DONE once for each"


class WorkerDiedError(ShardwrightError):
    """A worker died, and what it had to do is not done."""


@dataclass(frozen=True)
class Death:
    """How a worker died: what happened to it, and what may help."""

    device: str
    exit_code: int | None  # below 0 for a signal; None if it is not known
    what: str
    fix: str

    @property
    def text(self) -> str:
        """Say it in one line."""
        return f"{self.what}; {self.fix}"

    @property
    def error(self) -> WorkerDiedError:
        """Give the error to raise if nothing can be done."""
        return WorkerDiedError(self.what, fix=self.fix)


class Ended(NamedTuple):
    """What is left of a worker that died."""

    exit_code: int | None
    errors: list[str]  # lines; the last one says why


@dataclass(eq=False)
class Seat:
    """Where a worker can be: the name of its device there, and what people call it, if they do."""

    device: str
    name: str
    advice: str = MEMORY  # if memory runs out
    closed: bool = False
    deaths: int = 0  # in a row, of workers that had drawn no task


# Starts workers, at most one on a place, and carries what they and the driver say.
Crew: TypeAlias = "Processes | Actors"


def run_on(
    crew: Crew,
    function: Callable[[str, Iterator[Task]], Iterator[Message | Done]],
    tasks: Iterable[Task],
    instead: Callable[[Task, Death], Task | None] | None,
    warn: Callable[[str], None] | None,
) -> Generator[Message, None, None]:
    """Run a function on the places of a crew, as ``Devices.run`` says."""
    try:
        yield from _Pool(crew, function, tasks, instead, warn).run()
    finally:
        crew.close()


def gone(name: str, error: DeviceLostError) -> str:
    """Say that a device is gone."""
    return f"{name} is gone ({error})"


def none_left(gone: str) -> ShardwrightError:
    """Say that the last device is gone."""
    fix = "check the devices of this machine, then run the same command again"
    return ShardwrightError(f"{gone}, and no other device is left for its work", fix=fix)


class _State(Enum):
    STARTING = auto()
    WAITING = auto()
    WORKING = auto()
    ENDED = auto()


@dataclass(eq=False)
class _Worker(Generic[Task]):
    place: Seat
    state: _State = _State.STARTING
    drew: bool = False
    unfinished: deque[Task] = field(default_factory=deque)  # the oldest first


class _Pool(Generic[Task, Message]):
    """The workers, by their places, and the work left for them."""

    def __init__(
        self,
        crew: Crew,
        function: Callable[[str, Iterator[Task]], Iterator[Message | Done]],
        tasks: Iterable[Task],
        instead: Callable[[Task, Death], Task | None] | None,
        warn: Callable[[str], None] | None,
    ) -> None:
        self.crew, self.function = crew, function
        self.instead, self.warn = instead, warn
        self.ready, self.waiting = deque[Task](), iter(tasks)
        self.free: deque[Seat] = deque()
        self.workers: dict[Seat, _Worker[Task]] = {}
        self.gone = ""  # which device was lost last, and why

    def run(self) -> Iterator[Message]:
        """Deal with all tasks, until every worker has left."""
        while self._deal():
            interrupts.check()
            for place, kind, content in self.crew.receive():
                if place in self.workers:  # else it was stopped
                    yield from self._hear(self.workers[place], kind, content)

    def _deal(self) -> bool:
        """Answer those who wait, and start workers for other tasks; say if there is work left."""
        for worker in self.workers.values():
            if worker.state is _State.WAITING and self._has(1):
                self._give(worker, self.ready.popleft())
        busy = any(worker.unfinished for worker in self.workers.values())
        for worker in list(self.workers.values()):
            if worker.state is _State.WAITING and (worker.unfinished or not busy):
                worker.state = _State.ENDED
                self.crew.send(worker.place, END)
            elif worker.state is _State.STARTING and not busy and not self._has(1):
                self._stop(worker)
        self.free.extend(self.crew.opened())
        starting = sum(worker.state is _State.STARTING for worker in self.workers.values())
        while self.free and self._has(starting + 1):
            place = self.free.popleft()
            if not place.closed:
                self.crew.start(place)
                self.workers[place] = _Worker(place)
                starting += 1
        if self.workers or not self._has(1):
            return bool(self.workers)
        if not self.crew.grows:
            raise none_left(self.gone)
        return True

    def _has(self, count: int) -> bool:
        """Whether so many tasks are ready; take no more than these from the iterable."""
        self.ready.extend(islice(self.waiting, max(0, count - len(self.ready))))
        return len(self.ready) >= count

    def _give(self, worker: _Worker[Task], task: Task) -> None:
        worker.state, worker.drew, worker.place.deaths = _State.WORKING, True, 0
        worker.unfinished.append(task)
        self.crew.send(worker.place, (task,))

    def _hear(self, worker: _Worker[Task], kind: str, content: Any) -> Iterator[Message]:  # noqa: ANN401
        if kind == READY:
            self.crew.send(worker.place, (self.function, worker.place.device))
        elif kind == WANT:
            worker.state = _State.WAITING
        elif kind == LEFT:
            self._left(worker)
        elif kind == DIED:
            self._died(worker, content)
        elif kind == LOST:
            self._lost(worker, content)
        elif kind == FAILED:
            self._failed(worker, failure(*content))
        elif content is not DONE:
            yield content
        elif worker.unfinished:
            worker.unfinished.popleft()
        else:
            raise RuntimeError(_CONTRACT)

    def _left(self, worker: _Worker[Task]) -> None:
        if worker.unfinished or worker.state is not _State.ENDED:
            raise RuntimeError(_CONTRACT)
        self._stop(worker)
        self.free.append(worker.place)

    def _failed(self, worker: _Worker[Task], error: Exception) -> None:
        if not isinstance(error, DeviceLostError):
            where = f"on {worker.place.name}"
            if not worker.place.name:
                raise error
            if isinstance(error, ShardwrightError) and self.crew.grows:  # the node matters
                what = f"{error.what} ({where})"
                ShardwrightError.__init__(error, what, path=error.path, fix=error.fix)
            else:
                error.add_note(where)
            raise error
        self._stop(worker)
        self._put_back(worker.unfinished)
        self.gone = gone(worker.place.name, error)
        if self.warn is not None and (others := len(self.workers) + len(self.free)):
            devices = "device" if others == 1 else "devices"
            self.warn(f"{self.gone}; going on with {others} other {devices}")

    def _lost(self, worker: _Worker[Task], why: str) -> None:
        """Take back the tasks of a worker that is lost by no fault of theirs."""
        self._stop(worker)
        self._put_back(worker.unfinished)
        if self.warn is not None and worker.drew:
            self.warn(f"the worker on {worker.place.name} is lost ({why}); its tasks are run again")

    def _died(self, worker: _Worker[Task], ended: Ended) -> None:
        death = _death(worker, *ended)
        self._stop(worker)
        worker.place.deaths += not worker.drew
        if worker.place.deaths == _STARTS:
            self._give_up(worker.place, death)
        self.free.append(worker.place)
        if worker.unfinished:
            if self.instead is None:
                raise death.error
            replaced = self.instead(worker.unfinished.popleft(), death)
            self._put_back(worker.unfinished)
            self._put_back([] if replaced is None else [replaced])

    def _give_up(self, place: Seat, death: Death) -> None:
        """Close a place where no worker starts; the others of a cluster go on."""
        others = self.workers or not all(other.closed for other in self.free)
        if not self.crew.grows or not others:
            raise death.error
        place.closed = True
        if self.warn is not None:
            self.warn(f"{death.what}; going on without it")

    def _put_back(self, tasks: Iterable[Task]) -> None:
        self.ready.extendleft(reversed(list(tasks)))

    def _stop(self, worker: _Worker[Task]) -> None:
        del self.workers[worker.place]
        self.crew.stop(worker.place)


def _death(worker: _Worker[Any], code: int | None, errors: list[str]) -> Death:
    name, advice = worker.place.name, worker.place.advice
    how, fix = f"ended (exit code {code})", f"if memory ran out, {advice}"
    if code == -signal.SIGKILL:
        how, fix = f"was killed (signal {-code})", advice
    elif code is None:
        how = "ended"
    elif code < 0:
        how = f"crashed (signal {-code}, {signal.strsignal(-code)})"
    if not worker.drew:
        how += " before its first task"
    why = ["most often memory runs out"] if code == -signal.SIGKILL else []
    what = f"the worker on {name} {how}" if name else f"a worker process {how}"
    return Death(name, code, ": ".join([what, *(errors[-1:] or why)]), fix)
