"""The work of a build: tasks go to the devices, commits come back; what fails is replaced.

A device draws tasks, makes their samples, and writes a shard of each. Samples of the next shard are
read while those of the present one are encoded. They come out in their order, and go straight into
the tar. A sample that fails is left out, with its reason; with a limit, inputs of the reserve take
the place of those that failed.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.building import plan
from shardwright.building.commits import Commit, Commits, There
from shardwright.building.inputs import Left
from shardwright.building.samples import FromImage, Inputs, Planned
from shardwright.deriving.encoding import Encoding
from shardwright.deriving.outcomes import Outcomes
from shardwright.deriving.prepare import Array, Sample
from shardwright.deriving.results import Results
from shardwright.deriving.workers import DIED, TaskRunner, TaskSink, work_on
from shardwright.engine import DONE, DeviceEngine
from shardwright.engine.devices import Death
from shardwright.errors import SourceChangedError, StorageError
from shardwright.interrupts import check
from shardwright.layout import EMPTY_FOLDER
from shardwright.progress import Progress, quantity
from shardwright.shards.format.empty import empty_members
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.writer import ShardWriter, names_of
from shardwright.storage import files
from shardwright.storage.extents import CHANGED
from shardwright.storage.place import Place, place_at
from shardwright.store.arrays import pieces
from shardwright.store.facts import Truncated
from shardwright.summary import Count

_TRIES = 3  # of shards that two workers have made


@dataclass(frozen=True)
class Task:
    """A shard to make, and its inputs."""

    shard: plan.Shard
    samples: Inputs
    alone: bool = False  # whether its samples are made one by one, because a worker has died
    died: Mapping[int, str] = field(default_factory=dict)  # samples at which it died, and how
    there: There = field(default_factory=dict)  # what is there of its shard


@dataclass(frozen=True)
class Builder:
    """Makes the shards of a plan on one device."""

    making: Encoding
    results: Results
    commits: Commits
    sha256: bool
    pictures: int  # that it will read, about

    def __call__(self, device: str, tasks: Iterator[Task]) -> Iterator[Any]:
        with closing(_Sink(self, tasks)) as sink:
            yield from work_on(self.making, device, sink, self.pictures)


class _Sink(TaskSink[Task]):
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
            said.append((self._open[0].task.shard.number, self._open[0].done))
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
        self.commit = Commit(
            plan=builder.commits.plan,
            number=shard.number,
            task=shard.digest,
            attempt=secrets.token_hex(8),
        )
        self._storage: Place | None = None  # until there is a sample
        self._writer: ShardWriter | None = None

    def add(self, sample: Sample, results: Results) -> None:
        """Add a sample to the tar."""
        recipe, path, made = results.recipe, self.task.shard.path, sample.made or {}
        if self._writer is None:
            commits, attempt = self._builder.commits, self.commit.attempt
            self._storage = commits.storage(self.task.shard, attempt)
            self._writer = ShardWriter(self._storage, path, recipe, sha256=self._builder.sha256)
        assert isinstance(sample, Planned)
        image_id, (record, known) = sample.source.image_id, sample.described(results)
        self.commit.quality.add(known)
        if isinstance(sample, FromImage) and (image := sample.built()) is not None:
            self.commit.images.append(image)
        for name, lost in sample.tokens_lost.items():
            self.commit.truncated.setdefault(name, Truncated()).add(image_id, lost)
        if sample.unapplied:
            unapplied = Count(0, sample.source.path)
            self.commit.profiles.setdefault(sample.unapplied, unapplied).count += 1
        self._writer.begin(image_id, record, known)
        for component in recipe.components:
            self._writer.add(component, *pieces(made[component]))

    def finish(self) -> Commit:
        """Publish the shard, and commit the task."""
        if self._writer is not None:
            self.commit.shard = self._writer.finish()
        task, commits = self.task, self._builder.commits
        return commits.settle(task.shard, self.commit, self._storage, task.there)

    def discard(self) -> None:
        """Remove what was written, also files that are complete and have no name yet."""
        if self._writer is not None and self._storage is not None:
            self._writer.__exit__()
            for name in names_of(self.task.shard.path):
                with suppress(StorageError):  # the error that brought us here is the one to report
                    self._storage.discard(name)


class Work(TaskRunner[Task]):
    """Runs the tasks of a plan, and remembers their commits."""

    def __init__(
        self,
        builder: Builder,
        devices: DeviceEngine,
        layout: plan.Plan,
        settings: PackSettings,
        progress: Progress,
    ) -> None:
        super().__init__(devices, self._write_empties, progress, builder.making.batch_size)
        self._builder, self._plan, self._settings = builder, layout, settings
        self._done: dict[int, int] = {}  # samples of tasks that are under way
        self._given = dict[int, plan.Shard]()  # tasks that workers have, and are not committed
        self.commits: dict[int, Commit] = {}
        self.kept = 0  # shards of an interrupted run
        self.empties: dict[str, bytes] = {}  # the empty caption, by the suffix of its members
        self._empties = builder.commits.folder / EMPTY_FOLDER

    def run(self, first_numbers: Mapping[str | None, Mapping[str, int]]) -> dict[int, Commit]:
        """Run all tasks; then others in place of inputs that failed, if there is a limit."""
        shards, used = list(self._plan.shards), 0
        self.progress.phase("build", self._plan.samples, "images")
        while shards:
            self._run(shards)
            if not self._builder.commits.are_final:
                # Only once: what the store of the images does not give the second time is left out.
                unread = [shard for shard in shards if self.commits[shard.number].is_unread]
                why = "lack images that the store did not give; trying again"
                self._run(self._take_back(unread, why))
            self.empties = self._read_empties()
            self._run_again()
            missing = (self._settings.limit or 0) - self._samples
            spare = self._plan.reserves[used : used + max(missing, 0)]
            used += len(spare)
            if spare:
                count = quantity(len(spare), "other images")
                self.progress.say(f"{quantity(missing, 'images')} left out; trying {count}")
            parts = list(self._builder.commits.targets)
            shards = plan.add(self._plan, spare, self._settings, parts, first_numbers)
        return self.commits

    def _read_empties(self) -> dict[str, bytes]:
        names = empty_members(self._builder.making.recipe)
        return files.read_existing({name: self._empties / name for name in names})

    @property
    def _has_empties(self) -> bool:
        wanted = self._builder.making.empties
        return self._read_empties().keys() == {name for made in wanted for name in made.members}

    @property
    def _samples(self) -> int:
        return sum(commit.shard.samples for commit in self.commits.values() if commit.shard)

    def _run(self, shards: Sequence[plan.Shard]) -> None:
        if not shards:
            return
        found = self._builder.commits.found(shards)
        there = self._builder.commits.reopen(shards, found)
        todo = [shard for shard in shards if shard.number not in found]
        self.commits |= found
        self.kept += sum(commit.shard is not None for commit in found.values())
        self.progress.advance(sum(len(s.samples) for s in shards if s.number in found))
        if todo and len(todo) < len(shards):
            kept = f"{len(shards) - len(todo):,} of {quantity(len(shards), 'shards')}"
            self.progress.say(f"{kept} finished before; continuing")
        if not todo and self._has_empties:
            return
        builder = self._builder
        if self._has_empties:  # of an interrupted run
            builder = replace(builder, making=replace(builder.making, empties=()))
        try:
            self.run_tasks(builder, self._tasks(todo, there))
        except BaseException as error:
            if not isinstance(error, StorageError):  # then the store is within reach
                builder.commits.abandon(list(self._given.values()))
            raise

    def _take_back(self, shards: Sequence[plan.Shard], why: str) -> list[plan.Shard]:
        """Take back the commits of some tasks, to run these again."""
        if shards:
            self.progress.warn(f"{quantity(len(shards), 'shards')} {why}")
        for shard in shards:
            del self.commits[shard.number]
            self.progress.advance(-len(shard.samples))
        return [*shards]

    def _run_again(self) -> None:
        """Run tasks again whose shards are not what was committed: two workers have made them."""
        commits = self._builder.commits
        for _ in range(_TRIES):
            again = commits.differing(self._plan.shards, self.commits)
            if not again:
                return
            self._run(self._take_back(again, "differ from what was committed; made again"))
        what, fix = "other processes keep writing the shards of this build", "stop them, then run"
        raise SourceChangedError(what, path=commits.folder, fix=f"{fix} the same command again")

    def _tasks(self, shards: Sequence[plan.Shard], there: Mapping[int, There]) -> Iterator[Task]:
        """Give the tasks, as workers ask for them."""
        for shard in shards:
            check()
            self._given[shard.number] = shard
            inputs = self._plan.inputs_of(shard)
            yield Task(shard, inputs, there=there.get(shard.number, {}))

    def note(self) -> str:
        return f"{len(self.commits):,}/{quantity(len(self._plan.shards), 'shards')}"

    def take(self, message: Commit | tuple[int, int]) -> None:  # a task, and how far it is
        if isinstance(message, Commit):
            self.commits[message.number] = message
            shard = self._plan.shards[message.number]
            self._count(message.number, len(shard.samples))
            del self._done[message.number]
            self._given.pop(message.number, None)
        else:
            self._count(*message)

    def instead(self, task: Task, death: Death) -> Task:
        number, count = task.shard.number, len(task.samples)
        waiting = range(self._done.get(number, 0), count)
        self._count(number, 0)
        at = self.suspects(death, task.alone, waiting, task.died)
        return replace(task, alone=True, died={**task.died, **dict.fromkeys(at, death.text)})

    def _count(self, number: int, done: int) -> None:
        """Count the samples of a task; fewer than before if it was begun again."""
        self.progress.advance(done - self._done.get(number, 0))
        self._done[number] = done

    def _write_empties(self, arrays: Mapping[str, Array]) -> None:
        """Write down the empty caption, of the first device that has encoded it."""
        if not self._has_empties:
            files.make_folder(self._empties)
            for name, array in arrays.items():  # another process may have been first
                place_at(self._empties).claim(name, b"".join(pieces(array)))
