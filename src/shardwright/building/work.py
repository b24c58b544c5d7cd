"""The work of a build: tasks go to the devices, commits come back; what fails is replaced.

With a limit, inputs of the reserve take the place of those that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardwright.building import plan
from shardwright.building.commits import Commit
from shardwright.building.plan import Plan, Shard
from shardwright.building.shard import Builder, Progressed, Task
from shardwright.deriving.prepare import Array
from shardwright.deriving.serving import Hearing
from shardwright.engine import DeviceEngine
from shardwright.engine.devices import Death
from shardwright.errors import SourceChangedError, StorageError
from shardwright.interrupts import check
from shardwright.layout import EMPTY_FOLDER
from shardwright.progress import Progress, quantity
from shardwright.shards.format.empty import empty_members
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage import files
from shardwright.storage.remote import AbortedUploadError
from shardwright.storage.urls import Location
from shardwright.store.arrays import pieces

_TRIES = 3  # of shards that two workers have made


class Work(Hearing[Task]):
    """Runs the tasks of a plan, and remembers their commits."""

    def __init__(
        self,
        builder: Builder,
        devices: DeviceEngine,
        layout: Plan,
        settings: PackSettings,
        progress: Progress,
    ) -> None:
        super().__init__(devices, self._write_empties, progress, builder.making.batch_size)
        self._builder, self._plan, self._settings = builder, layout, settings
        self._done: dict[int, int] = {}  # samples of tasks that are under way
        self._given: dict[int, Shard] = {}  # tasks that were given to workers, and not committed
        self.commits: dict[int, Commit] = {}
        self.kept = 0  # shards of an interrupted run
        self.empties: dict[str, bytes] = {}  # the empty caption, by the suffix of its members

    def run(self, first_numbers: Mapping[str | None, Mapping[str, int]]) -> dict[int, Commit]:
        """Run all tasks; then others in place of inputs that failed, if there is a limit."""
        shards, used = list(self._plan.shards), 0
        self.progress.phase("build", self._plan.samples, "images")
        while shards:
            self._run(shards)
            if not self._builder.commits.are_final:
                self._run(self._unread(shards))
            # Before the last look: another process that finishes this build then removes it.
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
    def _empties(self) -> Location:
        return self._builder.commits.folder / EMPTY_FOLDER

    @property
    def _samples(self) -> int:
        return sum(commit.shard.samples for commit in self.commits.values() if commit.shard)

    def _run(self, shards: Sequence[Shard]) -> None:
        if not shards:
            return
        found = self._builder.commits.found(shards, reopen=True)
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
        if todo:
            builder.commits.open()
        try:
            self.hear(builder, self._tasks(todo))
        except StorageError as error:
            if isinstance(error, AbortedUploadError):  # else the store is out of reach
                builder.commits.abandon(list(self._given.values()))
            raise
        except BaseException:
            builder.commits.abandon(list(self._given.values()))
            raise

    def _unread(self, shards: Sequence[Shard]) -> list[Shard]:
        """Take back the tasks that an outage of the store of the images has left incomplete.

        Only once: what it does not give the second time is left out.
        """
        again = [shard for shard in shards if self.commits[shard.number].is_unread]
        if again:
            count = quantity(len(again), "shards")
            self.progress.warn(f"{count} lack images that the store did not give; trying again")
        for shard in again:
            del self.commits[shard.number]
            self.progress.advance(-len(shard.samples))
        return again

    def _run_again(self) -> None:
        """Run tasks again whose shards are not what was committed: two workers have made them."""
        for _ in range(_TRIES):
            self._builder.commits.close()
            again = self._builder.commits.differing(self._plan.shards, self.commits)
            if not again:
                return
            count = quantity(len(again), "shards")
            self.progress.warn(f"{count} differ from what was committed; made again")
            for shard in again:
                del self.commits[shard.number]
                self.progress.advance(-len(shard.samples))
            self._run(again)
        raise SourceChangedError(
            "other processes keep writing the shards of this build",
            path=self._builder.commits.folder,
            fix="stop them, then run the same command again",
        )

    def _tasks(self, shards: Sequence[Shard]) -> Iterator[Task]:
        """Give the tasks, as workers ask for them; not those that another process has done."""
        for shard in shards:
            check()
            if (commit := self._builder.commits.done(shard)) is not None:
                self.take(commit)
            else:
                self._given[shard.number] = shard
                yield Task(shard, self._plan.inputs_of(shard))

    def note(self) -> str:
        return f"{len(self.commits):,}/{quantity(len(self._plan.shards), 'shards')}"

    def take(self, message: Commit | Progressed) -> None:
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
            for name, array in arrays.items():
                path, data = self._empties / name, b"".join(pieces(array))
                files.claim(path, data)  # another process may have been first
