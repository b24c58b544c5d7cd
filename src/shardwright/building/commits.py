"""Commits: what each task of a build has made, written when its shard is on the disk.

The manifest is written from them alone. A task whose commit is there is not run again.

A worker that was thought lost may go on, and finish a task that another worker has done meanwhile.

In a folder, shards are staged until all are there, under a lock. Each attempt at a task has a name
of its own, for its staged files and its commit, so neither can touch what the other has made. Which
commits count is written down before the first shard gets its place.

At an object store shards go straight to their names. One run is the driver of a plan. It has left a
mark, under the condition that nobody else has meanwhile. A later run of the plan puts its own in
that place, and then the earlier one and its workers end. All of them first look at what is there,
then whether the mark is still that of their driver, and write under the condition that nobody has
written since they looked. So nothing that a later driver has made is ever replaced.

1. The driver gives out a task with what is there of its shard already. If something is, it first
   writes in the place of the commit, so that whoever has left the shard cannot commit any more.
2. A worker creates or replaces the files of its shard, the shard last, and then the commit. What it
   makes does not count if somebody else has written one of these: the etag of its commit is blank.
3. When all tasks are done, ``differing`` compares all files and commits with what is known of them.
   Where they differ, their tasks are run again.
4. Then the driver replaces its mark by the word that the commits are final, which fails if another
   run is the driver, and the manifest is written. Until then, what is no longer as its commit says
   is made again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Self

import msgspec

from shardwright.building.built import Built
from shardwright.building.inputs import Left
from shardwright.building.plan import Shard
from shardwright.errors import LockedError, StorageError
from shardwright.interrupts import check
from shardwright.shards.format import manifest
from shardwright.shards.format.index import index_name
from shardwright.shards.format.moving import make_folders, remove_attempts, stage_of
from shardwright.shards.format.writer import names_of, publish
from shardwright.storage import files
from shardwright.storage.extents import GONE, UNREADABLE, may_pass
from shardwright.storage.objects import NEW, ConditionError
from shardwright.storage.place import Place, place_at
from shardwright.storage.urls import Location, names
from shardwright.store.facts import Quality, Truncated
from shardwright.store.records import NOT_JSON
from shardwright.summary import Count

MOVING_NAME = "moving"  # in a stage: shards may have moved out of it
FOLDER = "commits"
_FINAL = "final"  # beside the commits: those that shards may have been published from
_DRIVER = "driver"  # the same, at an object store: which run is the driver, or that they are final

_COMMIT = ""  # in what is there of a task: its commit

There = Mapping[str, str]  # the etags of what is there of a task at an object store, by name
_NOTHING: There = {}

_Attempt = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")]  # a part of paths


class Commit(msgspec.Struct, kw_only=True):
    """What became of the samples of one task."""

    plan: str
    number: int
    task: str = ""  # its digest
    attempt: _Attempt = ""  # in a folder: the name of this attempt at the task
    shard: manifest.ShardEntry | None = None  # None if all samples are left out
    left: list[Left] = []
    truncated: dict[str, Truncated] = {}  # by component
    quality: Quality = msgspec.field(default_factory=Quality)
    images: list[Built] = []  # of the samples of its shard
    profiles: dict[str, Count] = {}  # of colour, not applied
    etags: dict[str, str] = {}  # at an object store: of the files that are there of it, by name
    etag: str = ""  # at an object store: of this commit, known when it has been written

    @property
    def is_doubtful(self) -> bool:
        """Whether the inputs may only have been out of reach, so that the next run tries again."""
        failed = [left.reason for left in self.left if not left.by_recipe]
        return bool(failed) and (self.shard is None or not {GONE, UNREADABLE}.isdisjoint(failed))

    @property
    def is_unread(self) -> bool:
        """Whether an object store has not given all of the inputs."""
        return any(left.reason == UNREADABLE and may_pass(left.path) for left in self.left)


@dataclass(frozen=True)
class Commits:
    """The commits of a plan, and the place where its workers leave their shards, in a folder."""

    plan: str
    folder: Location  # of the plan
    targets: Mapping[str | None, Location]  # the shard folder of each part

    def begun(self) -> Self:
        """Begin to run tasks; nothing to do under a lock."""
        return self

    def storage(self, shard: Shard, attempt: str) -> Place:
        """Give the place where a worker writes a shard."""
        stage = stage_of(self.targets[shard.part]) / attempt
        make_folders(stage, [shard.path])
        return place_at(stage)

    def settle(
        self, shard: Shard, commit: Commit, storage: Place | None, there: There = _NOTHING
    ) -> Commit:
        """Publish a finished shard and commit its task, which ends it.

        Without a storage there is no shard. ``there`` is what ``reopen`` gave.
        """
        if storage is not None:
            publish(storage, shard.path)
            for name in (index_name(shard.path), shard.path):
                files.sync_folder((storage.folder / name).parent)
        files.write(self._path(shard, commit.attempt), _encoded(commit))
        return commit

    def found(self, shards: Sequence[Shard]) -> dict[int, Commit]:
        """Read the commits of finished tasks, if what they name is there."""
        tasks, final = {shard.number: shard for shard in shards}, self._final()
        found = dict[int, Commit]()
        for name in names(self.folder / FOLDER):
            check()
            number, _, attempt = name.removesuffix(".json").partition("-")
            shard = tasks.get(int(number)) if number.isdecimal() else None
            if shard is None or (final is not None and final.get(shard.number, "") != attempt):
                continue
            with suppress(OSError):
                commit = self._read(shard, attempt)
                if commit is None or commit.attempt != attempt:
                    continue
                counts = final is not None or not commit.is_doubtful
                if counts and self._is_there(shard, commit):
                    found[shard.number] = commit
        return found

    def reopen(self, shards: Sequence[Shard], found: Mapping[int, Commit]) -> dict[int, There]:
        """Let tasks be run again whose commits were not found; give what is there of them.

        What attempts have left that do not count is removed, for the room that it takes.
        """
        if self.are_final:
            return {}
        kept, tasks = set(), {shard.number for shard in shards}
        for name in names(self.folder / FOLDER):
            number, _, attempt = name.removesuffix(".json").partition("-")
            task = int(number) if number.isdecimal() else -1
            if task in tasks and (task not in found or found[task].attempt != attempt):
                files.remove(self.folder / FOLDER / name)
            else:
                kept.add(attempt)
        for target in self.targets.values():
            remove_attempts(target, kept)
        return {}

    @property
    def are_final(self) -> bool:
        """Whether none is made again, whatever its inputs were."""
        return (self.folder / _FINAL).is_file()

    def finalize(self, commits: Mapping[int, Commit]) -> None:
        """Write down which commits count, before the first shard is published from them."""
        attempts = {number: commit.attempt for number, commit in commits.items()}
        files.write(self.folder / _FINAL, msgspec.json.encode(attempts))

    def _final(self) -> dict[int, str] | None:
        """Read which attempt at each task counts, once that is written down."""
        try:
            return msgspec.json.decode(files.read(self.folder / _FINAL), type=dict[int, str])
        except FileNotFoundError:
            return None
        except NOT_JSON:  # then all of them are made again
            return {}

    def differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        """Find the committed shards whose files are not those of their commits."""
        return []

    def abandon(self, shards: Sequence[Shard]) -> None:
        """Remove what the workers of these tasks, which were ended, have left half done."""

    def _read(self, shard: Shard, attempt: str = "", etag: str = "") -> Commit | None:
        """Read a commit, unless something else stands in its place."""
        with suppress(FileNotFoundError, *NOT_JSON):
            commit = msgspec.json.decode(files.read(self._path(shard, attempt)), type=Commit)
            commit.etag, made = etag, commit.shard
            named = (commit.plan, commit.number, commit.task)
            is_of = named == (self.plan, shard.number, shard.digest)
            if made is not None:  # it is moved from the path that it names
                is_of &= (made.path, made.bucket) == (shard.path, shard.bucket)
                is_of &= made.samples <= len(shard.samples)
            return commit if is_of else None
        return None

    def _is_there(self, shard: Shard, commit: Commit) -> bool:
        """Whether a shard is in the stage, complete; or it and its index have gone to their place.

        Its tar moves last.
        """
        if (entry := commit.shard) is None:
            return True
        stage = stage_of(self.targets[shard.part])
        own = stage / commit.attempt
        staged = own / entry.path
        if staged.exists() and staged.stat().st_size != entry.bytes:
            return False
        if (stage / MOVING_NAME).exists():
            return staged.exists() or not (own / index_name(entry.path)).exists()
        return all((own / name).exists() for name in names_of(entry.path))

    def _path(self, shard: Shard, attempt: str = "") -> Location:
        return self.folder / FOLDER / f"{shard.number:06}{attempt and '-'}{attempt}.json"


def _encoded(commit: Commit) -> bytes:
    return msgspec.json.encode(commit) + b"\n"


@dataclass(frozen=True)
class DirectCommits(Commits):
    """Commits of a plan at an object store."""

    driver: str = ""  # the etag of the mark of the driver, by which its workers know it

    def begun(self) -> Self:
        """Become the driver; one that there was notices that, and ends."""
        seen = place_at(self.folder).etag(_DRIVER)
        if self.are_final:
            return replace(self, driver=seen)
        self._require_begun()
        return replace(self, driver=self._marked(secrets.token_bytes(16), seen))

    def storage(self, shard: Shard, attempt: str) -> Place:
        return place_at(self.targets[shard.part])

    def settle(
        self, shard: Shard, commit: Commit, storage: Place | None, there: There = _NOTHING
    ) -> Commit:
        names = names_of(shard.path)
        try:
            self._require_driver()
            for name in names:
                if storage is not None:
                    commit.etags[name] = storage.publish(name, there.get(name, NEW))
                elif name in there:  # a removal has no condition: only who ends the plan does it
                    commit.etags[name] = there[name]
            commit.etag = self._write(shard, _encoded(commit), there.get(_COMMIT, NEW))
        except ConditionError:  # another worker has written here
            commit.etag = ""
        finally:
            if storage is not None:
                for name in names:
                    storage.discard(name)
        return commit

    def found(self, shards: Sequence[Shard]) -> dict[int, Commit]:
        etags = self._etags()
        known = [shard for shard in shards if shard.number in etags]
        place = place_at(self.folder)
        read = place.each(lambda shard: self._read(shard, etag=etags[shard.number]), known)
        commits = {commit.number: commit for commit in read if commit is not None}
        again = {shard.number for shard in self.differing(known, commits)}
        if not self.are_final:
            again |= {number for number, commit in commits.items() if commit.is_doubtful}
        return {number: commit for number, commit in commits.items() if number not in again}

    def reopen(self, shards: Sequence[Shard], found: Mapping[int, Commit]) -> dict[int, There]:
        again = [shard for shard in shards if shard.number not in found]
        if not again:
            return {}
        etags, there, given = self._etags(), self._there(again), dict[int, There]()
        self._require_driver()
        self._require_begun()  # else its commits are being removed
        for shard in again:
            files_of, etag = there[shard.number], etags.get(shard.number, NEW)
            if files_of or etag:
                check()
                with suppress(ConditionError):  # somebody commits it just now, which does not count
                    claim = self._write(shard, secrets.token_bytes(16), etag)
                    given[shard.number] = {**files_of, _COMMIT: claim}
        return given

    @property
    def are_final(self) -> bool:
        with suppress(FileNotFoundError):
            return files.read(self.folder / _DRIVER) == _FINAL.encode()
        return False

    def finalize(self, commits: Mapping[int, Commit]) -> None:
        self._marked(_FINAL.encode(), self.driver)

    def abandon(self, shards: Sequence[Shard]) -> None:
        # The error that brought us here is the one to report.
        with suppress(StorageError, LockedError):
            self._require_driver()  # else they may be those of another run
            for part, folder in self.targets.items():
                if names := {n for s in shards if s.part == part for n in names_of(s.path)}:
                    place_at(folder).abandon(names)

    def differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        those = [shard for shard in shards if shard.number in commits]
        if not those:
            return []
        there, etags = self._there(those), self._etags()
        known = {number: (commit.etag, commit.etags) for number, commit in commits.items()}
        return [s for s in those if (etags.get(s.number), there[s.number]) != known[s.number]]

    def _there(self, shards: Iterable[Shard]) -> dict[int, dict[str, str]]:
        """List the files that are there of some shards, with their etags, by task."""
        listed = {part: place_at(folder).etags() for part, folder in self.targets.items()}
        return {
            shard.number: {n: e for n in names_of(shard.path) if (e := listed[shard.part].get(n))}
            for shard in shards
        }

    def _etags(self) -> dict[int, str]:
        """List the commits, by their tasks, with their etags; also what stands in their place."""
        found = place_at(self.folder / FOLDER).etags().items()
        numbers = ((name.removesuffix(".json"), etag) for name, etag in found)
        return {int(name): etag for name, etag in numbers if name.isdecimal()}

    def _marked(self, data: bytes, seen: str) -> str:
        """Write the mark of the driver, unless it is another one by now; give its etag."""
        try:
            return place_at(self.folder).write(_DRIVER, data, seen)
        except ConditionError:
            raise self._taken() from None

    def _require_begun(self) -> None:
        """Raise if no folder waits for this plan any more, because another run has finished it."""
        if not any(map(self._waits, self.targets.values())):
            for folder in self.targets.values():
                manifest.remove_unfinished(folder, self.plan)
            raise self._taken()

    def _waits(self, folder: Location) -> bool:
        """Whether a folder has the note of this plan, but not its shards in the manifest.

        Who looks too late leaves such a note for a moment, and if it is killed then, for good.
        """
        note, done = manifest.load_unfinished(folder), manifest.load_manifest(folder)
        listed = done is not None and done.runs[-1].plan == self.plan
        return note is not None and note.plan == self.plan and not listed

    def _require_driver(self) -> None:
        """Raise if another run has become the driver, or has finished."""
        if place_at(self.folder).etag(_DRIVER) != self.driver:
            raise self._taken()

    def _taken(self) -> LockedError:
        what = "another run of this build goes on with it, or has finished it"
        fix = "let it finish, or stop it and run the same command again"
        return LockedError(what, path=self.folder, fix=fix)

    def _write(self, shard: Shard, data: bytes, condition: str) -> str:
        return place_at(self.folder / FOLDER).write(self._path(shard).name, data, condition)
