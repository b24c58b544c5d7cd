"""Deriving on several devices: workers seal arrays, this process publishes them with their records.

Each worker runs groups of samples through its own pipeline. A group is published when it is
complete and all groups before it are, so the store grows in the order of the images, as on one
device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from shardwright.deriving.commit import Committer, Sealer
from shardwright.deriving.making import Making, Report
from shardwright.deriving.passes import Array
from shardwright.deriving.prepare import Sample
from shardwright.deriving.serving import DIED, Drawing, Hearing, served
from shardwright.engine import DONE
from shardwright.engine.devices import Death, Devices
from shardwright.progress import Progress
from shardwright.store.arrays import remove_sealed

_LARGEST = 256  # samples in a group
_SHARES = 8  # groups for each device at least, so that all end at about the same time


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

    making: Making
    sealer: Sealer
    pictures: int  # that it will read, about

    def __call__(self, device: str, groups: Iterator[Group]) -> Iterator[Any]:
        return served(self.making, device, _Sink(self.sealer, groups), self.pictures)


class _Sink(Drawing[Group]):
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


class Publisher(Hearing[Group]):
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
        making = replace(worker.making, reach=2 * size, cores=self.devices.cores_each)
        worker = replace(worker, making=making, pictures=worker.pictures // count)
        try:
            self.hear(worker, self._groups(samples, size))
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
