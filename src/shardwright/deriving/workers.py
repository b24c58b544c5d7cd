"""Between a device and the process that gives it work: the same for derive and for build.

A worker draws tasks, runs their samples through its pipeline, and sends what its sink says of them.
If a worker dies, its oldest task is run again with its samples one by one; the samples at which a
worker dies again fail.

The tasks of derive are groups of samples, whose arrays the workers seal. A group is published when
it is complete and all groups before it are, so the store grows in the order of the images, as on
one device.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

from shardwright.deriving.batches import BATCH_SIZE
from shardwright.deriving.encoding import DeviceEncoder, Encoding
from shardwright.deriving.pipeline import ALONE, Report, Sink
from shardwright.deriving.prepare import Array, Sample
from shardwright.deriving.results import Committer, Sealer
from shardwright.engine import DONE, DeviceEngine
from shardwright.engine.devices import Death, Devices
from shardwright.errors import ShardwrightError
from shardwright.progress import Progress
from shardwright.store.arrays import remove_sealed

Task = TypeVar("Task")

_NOTE_EVERY = 10  # seconds
_LARGEST = 256  # samples in a group
_SHARES = 8  # groups for each device at least, so that all end at about the same time
DIED = "worker_died"  # the reason of a sample at which workers die


class EmptyArrays(NamedTuple):
    """The empty caption, by the suffix of its members; each worker encodes it, and one is used."""

    arrays: dict[str, Array]


class IdleTime(NamedTuple):
    """The part of the time in which the encoders of a worker were idle."""

    worker: str  # its machine and process
    part: float


class _Messages(Progress):
    """Keeps what a worker says until it is sent."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()

    def say(self, text: str) -> None:
        self._texts.append(text)

    def taken(self) -> Iterator[str]:
        """Give what was said since, once."""
        while self._texts:
            yield self._texts.popleft()


class TaskSink(Sink[list[Any]], Generic[Task]):
    """A sink that also draws the tasks whose samples end in it; it says DONE after each."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks, self._held = tasks, list[Task]()
        self.ended = False  # whether there are no more tasks

    def samples(self) -> Iterator[Sample]:
        """Give the samples of the tasks that are drawn, until one must be alone, or has been.

        If a worker died at a task, no sample of another one may be encoded beside its own: the next
        death would be blamed on the wrong task.
        """
        first = True
        for task in chain(self._held, self._tasks):
            alone = self.is_alone(task)
            self._held = [task] if alone and not first else []
            if self._held:
                return
            first = False
            yield from self.begin(task)
            if alone:
                return
        self.ended = True

    @abstractmethod
    def is_alone(self, task: Task) -> bool:
        """Whether the samples of a task are made one by one."""

    @abstractmethod
    def begin(self, task: Task) -> Iterable[Sample]:
        """Begin a task, and give its samples."""


def work_on(encoding: Encoding, device: str, sink: TaskSink[Any], pictures: int) -> Iterator[Any]:
    """Do what a worker does: load the encoders, make all samples that are drawn, and report."""
    if device.startswith("cuda:") and not encoding.loaded:  # then this process has no other device
        import torch

        torch.cuda.set_device(device)  # or it would take memory of the first one too
    progress = _Messages()
    encoder = DeviceEncoder(encoding, device, progress)
    if encoding.empties:
        yield EmptyArrays(encoder.empties())
    while not sink.ended:
        for messages in encoder.run(sink.samples(), sink, 0, pictures):
            yield from progress.taken()
            yield IdleTime(f"{os.uname().nodename}:{os.getpid()}", encoder.so_far.idle)
            yield from messages
    yield from progress.taken()
    yield encoder.report()


class TaskRunner(ABC, Generic[Task]):
    """Gives tasks to devices, and takes the messages about them."""

    def __init__(
        self,
        devices: DeviceEngine,
        keep: Callable[[dict[str, Array]], None],
        progress: Progress,
        batch_size: int | None,
    ) -> None:
        self.devices, self.progress = devices, progress
        self._keep = keep  # the empty caption
        self._most = max(ALONE, batch_size or BATCH_SIZE)  # samples that a worker has at a time
        self._idle: dict[str, float] = {}
        self.report = Report()  # what the devices have done
        self._noted = time.monotonic()

    @abstractmethod
    def take(self, message: Any) -> None:  # noqa: ANN401 - what the sink says
        """Take a message about samples."""

    @abstractmethod
    def instead(self, task: Task, death: Death) -> Task:
        """Give what is run in place of a task whose worker died."""

    @abstractmethod
    def note(self) -> str:
        """Say how far the work is."""

    def run_tasks(
        self, worker: Callable[[str, Iterator[Task]], Iterator[Any]], tasks: Iterator[Task]
    ) -> None:
        """Run all tasks."""
        messages = self.devices.run(worker, tasks, self.instead, self.progress.warn)
        with closing(messages):
            for message in messages:
                match message:
                    case str():
                        self.progress.say(message)
                    case Report():
                        self.report.add(message)
                    case EmptyArrays(arrays):
                        self._keep(arrays)
                    case IdleTime(worker_, part):
                        self._idle[worker_] = part
                        self._say()
                    case _:
                        self.take(message)

    def _say(self) -> None:
        idle = f"encoder idle {sum(self._idle.values()) / len(self._idle):.0%}"
        worst = max(self._idle, key=lambda worker: self._idle[worker])
        if len(self._idle) > 1:
            idle += f", at most {self._idle[worst]:.0%} ({worst})"
        self.progress.aside(idle)
        if time.monotonic() - self._noted >= _NOTE_EVERY:
            self._noted = time.monotonic()
            self.progress.note(f"{self.note()}, {idle}")

    def suspects(
        self, death: Death, alone: bool, waiting: Iterable[int], failed: Container[int]
    ) -> list[int]:
        """Say that a worker died; if its task was alone, give the samples that it was working on.

        ``waiting`` are the samples of the task that it had not finished.
        """
        if not alone:
            self.progress.warn(f"{death.text}; its images are tried again, one at a time")
            return []
        at = list(islice((n for n in waiting if n not in failed), self._most))
        if not at:  # it dies without any of them
            raise ShardwrightError(death.what, fix=death.fix)
        self.progress.warn(f"{death.text}; the images it was working on fail")
        return at


class Group(NamedTuple):
    """Some samples in the order of the images."""

    number: int
    samples: list[Sample]


class Made(NamedTuple):
    """Sealed samples of a group, in order, from the first that was not sent before."""

    number: int
    first: int
    samples: list[Sample]


@dataclass(frozen=True)
class Worker:
    """What a device does with the groups that it draws."""

    encoding: Encoding
    sealer: Sealer
    pictures: int  # that it will read, about

    def __call__(self, device: str, groups: Iterator[Group]) -> Iterator[Any]:
        return work_on(self.encoding, device, _Sink(self.sealer, groups), self.pictures)


class _Sink(TaskSink[Group]):
    """Seals samples, and says to which group they belong."""

    def __init__(self, sealer: Sealer, groups: Iterator[Group]) -> None:
        super().__init__(groups)
        self._sealer = sealer
        self._open: deque[tuple[Group, int]] = deque()  # groups, and their samples so far

    def is_alone(self, task: Group) -> bool:
        return task.samples[0].alone

    def begin(self, task: Group) -> Iterable[Sample]:
        self._open.append((task, 0))
        return task.samples

    def check(self, sample: Sample) -> None:
        self._sealer.check(sample)

    def commit(self, samples: Sequence[Sample]) -> list[Any]:
        self._sealer.seal(samples)
        waiting, said = deque(samples), list[Any]()
        while waiting:
            group, first = self._open.popleft()
            count = min(len(waiting), len(group.samples) - first)
            said.append(Made(group.number, first, [waiting.popleft() for _ in range(count)]))
            if first + count == len(group.samples):
                said.append(DONE)
            else:
                self._open.appendleft((group, first + count))
        return said


class Publisher(TaskRunner[Group]):
    """Publishes what workers have sealed, in the order of the images."""

    def __init__(
        self,
        committer: Committer,
        devices: Devices,
        keep: Callable[[dict[str, Array]], None],
        progress: Progress,
        batch_size: int | None,
    ) -> None:
        super().__init__(devices, keep, progress, batch_size)
        self._committer = committer
        self._given: dict[int, Group] = {}  # and not published
        self._made: dict[int, list[Sample]] = {}
        self._next = self._total = 0

    def run(self, worker: Worker, samples: Iterator[Sample], total: int) -> Report:
        """Make all samples, and say what the devices have done."""
        self._total, count = total, len(self.devices.names)
        size = max(1, min(_LARGEST, total // (_SHARES * count)))
        encoding = replace(worker.encoding, reach=2 * size, cores=self.devices.cores_each)
        worker = replace(worker, encoding=encoding, pictures=worker.pictures // count)
        try:
            self.run_tasks(worker, self._groups(samples, size))
        finally:  # no worker is left
            store = self._committer.store
            for group in self._given.values():
                names = ((c, s.source.image_id) for s in group.samples for c in s.make)
                remove_sealed(store.array(*name) for name in names)
        return self.report

    def note(self) -> str:
        outcomes = self._committer.outcomes
        return f"{outcomes.derived + len(outcomes.failures):,}/{self._total:,} images"

    def take(self, message: Made) -> None:
        # From there on, because a device that was lost may have sent some of it before.
        self._made.setdefault(message.number, [])[message.first :] = message.samples
        while group := self._given.get(self._next):
            made = self._made.get(self._next, [])
            if len(made) < len(group.samples):
                return
            self._committer.publish(made)
            del self._given[self._next], self._made[self._next]
            self._next += 1

    def instead(self, task: Group, death: Death) -> Group:
        samples = [replace(sample, alone=True) for sample in task.samples]
        waiting = range(len(self._made.pop(task.number, [])), len(samples))
        failed = {n for n, sample in enumerate(samples) if sample.failure}
        for n in self.suspects(death, task.samples[0].alone, waiting, failed):
            samples[n].failure = (DIED, death.text)
        self._given[task.number] = Group(task.number, samples)
        return self._given[task.number]

    def _groups(self, samples: Iterator[Sample], size: int) -> Iterator[Group]:
        number = 0
        while part := list(islice(samples, size)):
            self._given[number] = Group(number, part)
            yield self._given[number]
            number += 1
