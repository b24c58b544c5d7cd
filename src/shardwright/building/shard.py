"""What a device does in a build: it draws tasks, makes their samples, and writes a shard of each.

Samples of the next shard are read while those of the present one are encoded. They come out in
their order, and go straight into the tar. A sample that fails is left out, with its reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardwright.building.commits import Commit, Commits
from shardwright.building.inputs import CHANGED
from shardwright.building.ledger import Left
from shardwright.building.plan import Shard
from shardwright.building.samples import Inputs, Planned
from shardwright.deriving.making import Making
from shardwright.deriving.outcomes import Outcomes
from shardwright.deriving.prepare import Sample
from shardwright.deriving.results import Results
from shardwright.deriving.serving import DIED, Drawing, served
from shardwright.engine import DONE
from shardwright.errors import StorageError
from shardwright.shards.format.writer import ShardWriter, names_of
from shardwright.storage.place import Place
from shardwright.store.arrays import pieces
from shardwright.store.facts import Truncated
from shardwright.summary import Count


@dataclass(frozen=True)
class Task:
    """A shard to make, and its inputs."""

    shard: Shard
    samples: Inputs
    alone: bool = False  # whether its samples are made one by one, because a worker has died
    died: Mapping[int, str] = field(default_factory=dict)  # samples at which it died, and how


class Progressed(NamedTuple):
    """How far a task is."""

    number: int
    samples: int  # that are done


@dataclass(frozen=True)
class Builder:
    """Makes the shards of a plan on one device."""

    making: Making
    results: Results
    commits: Commits
    sha256: bool
    pictures: int  # that it will read, about

    def __call__(self, device: str, tasks: Iterator[Task]) -> Iterator[Any]:
        with closing(_Sink(self, tasks)) as sink:
            yield from served(self.making, device, sink, self.pictures)


class _Sink(Drawing[Task]):
    """Where samples end: in the tar of their task, or in the ledger."""

    def __init__(self, builder: Builder, tasks: Iterator[Task]) -> None:
        super().__init__(tasks)
        self._builder, self._results = builder, builder.results
        self._open: deque[_Shard] = deque()  # the tasks that were drawn, oldest first
        self._outcomes = Outcomes()

    def is_alone(self, task: Task) -> bool:
        return task.alone

    def begin(self, task: Task) -> Iterator[Sample]:
        self._open.append(_Shard(task, self._builder))
        for number, sample in enumerate(task.samples.samples()):
            sample.alone = task.alone
            if number in task.died:
                sample.failure = (DIED, task.died[number])
            yield sample

    def check(self, sample: Sample) -> None:
        assert isinstance(sample, Planned)
        sample.settle(self._results)

    def commit(self, samples: Sequence[Sample]) -> list[Any]:
        said: list[Any] = []
        for sample in samples:
            shard = self._open[0]
            if sample.failure:
                self._leave_out(shard, sample, *sample.failure)
            else:
                self._outcomes.succeed(changed=True)
                shard.add(sample, self._results)
            sample.made = {}
            shard.done += 1
            if shard.done == len(shard.task.samples):
                said += [shard.finish(), DONE]
                self._open.popleft()
        if self._open and self._open[0].done:
            said.append(Progressed(self._open[0].task.shard.number, self._open[0].done))
        return said

    def _leave_out(self, shard: _Shard, sample: Sample, reason: str, detail: str) -> None:
        left = Left(sample.source.image_id, sample.source.path, reason, detail, sample.is_left_out)
        shard.commit.left.append(left)
        if not (sample.is_left_out or reason in (CHANGED, DIED)):  # the others may be good
            self._outcomes.fail_at_work(sample.source, reason, detail, [])

    def close(self) -> None:
        """Discard what is not finished."""
        for shard in self._open:
            shard.discard()


class _Shard:
    """The shard of a task, while it is made."""

    def __init__(self, task: Task, builder: Builder) -> None:
        self.task, self._builder = task, builder
        self.done = 0  # samples
        shard = task.shard
        self.commit = Commit(plan=builder.commits.plan, number=shard.number, task=shard.digest)
        builder.commits.begin(task.shard)
        self._storage: Place | None = None  # until there is a sample
        self._writer: ShardWriter | None = None

    def add(self, sample: Sample, results: Results) -> None:
        """Add a sample to the tar."""
        recipe, path, made = results.recipe, self.task.shard.path, sample.made or {}
        if self._writer is None:
            self._storage = self._builder.commits.storage(self.task.shard)
            self._writer = ShardWriter(self._storage, path, recipe, sha256=self._builder.sha256)
        assert isinstance(sample, Planned)
        image_id, (record, known) = sample.source.image_id, sample.described(results)
        self.commit.quality.add(known)
        if (image := sample.built()) is not None:
            self.commit.images.append(image)
        for name, lost in sample.tokens_lost.items():
            self.commit.truncated.setdefault(name, Truncated()).add(image_id, lost)
        if sample.unapplied:
            count = self.commit.profiles.setdefault(sample.unapplied, Count(0, sample.source.path))
            count.count += 1
        self._writer.begin(image_id, record, known)
        for component in recipe.components:
            self._writer.add(component, *pieces(made[component]))

    def finish(self) -> Commit:
        """Publish the shard, and commit the task."""
        if self._writer is not None:
            self.commit.shard = self._writer.finish()
        return self._builder.commits.settle(self.task.shard, self.commit, self._storage)

    def discard(self) -> None:
        """Remove what was written, also files that are complete and have no name yet."""
        if self._writer is not None and self._storage is not None:
            self._writer.__exit__()
            for name in names_of(self.task.shard.path):
                with suppress(StorageError):  # the error that brought us here is the one to report
                    self._storage.discard(name)
