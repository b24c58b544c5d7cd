"""Commits: what each task of a build has made, written when its shard is on the disk.

The manifest is written from them alone. A task whose commit is there is not run again.

A worker that was thought lost may go on, and finish a task that another worker has done meanwhile.

In a folder, shards are staged until all are there, under a lock. Each attempt at a task has a name
of its own, for its staged files and its commit, so neither can touch what the other has made. Which
commits count is written down before the first shard gets its place.

At an object store shards go straight to their names, and no lock keeps two runs of one plan apart.
So every step is a conditional write, which fails if somebody else has taken a step in the meantime:

1. A worker looks at the files of its shard and at the commit. If nothing is there, it creates the
   files, the shard last, and then the commit.
2. If files are there without a commit, their worker is about to commit, or has died. After a pause
   the task is claimed: the claim takes the place of the commit, which the other cannot write any
   more. The claimant then looks again, and replaces each file only if it is still the same.
3. Before the manifest is written, publishing is closed, and then ``differing`` compares all files
   and commits with what is known of them. Where they differ, their tasks are run again.

Publishing is open as long as a file of that name is there: workers look for it after a claim, and
before they publish. So whoever publishes after it was closed has left a claim that is found.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec

from shardwright.building.built import Built
from shardwright.building.inputs import Left
from shardwright.building.plan import Shard
from shardwright.errors import SourceChangedError, StorageError
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
_OPEN = "open"  # the same: workers may publish
_GRACE = 15  # seconds for which another worker may be about to commit
_PATIENCE = 60  # seconds in which another worker must have committed
_LOOK = 0.5  # seconds between two looks

_Attempt = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")]  # a part of paths


class TakenOverError(SourceChangedError):
    """Another process has finished this build, or a part of it."""


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
    etags: dict[str, str] = {}  # at an object store: of the files of the shard, by name
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

    def storage(self, shard: Shard, attempt: str) -> Place:
        """Give the place where a worker writes a shard."""
        stage = stage_of(self.targets[shard.part]) / attempt
        make_folders(stage, [shard.path])
        return place_at(stage)

    def settle(self, shard: Shard, commit: Commit, storage: Place | None) -> Commit:
        """Publish a finished shard and commit its task, which ends it; give the commit that counts.

        That of another worker counts if it came first. Without a storage there is no shard.
        """
        if storage is not None:
            publish(storage, shard.path)
            for name in (index_name(shard.path), shard.path):
                files.sync_folder((storage.folder / name).parent)
        files.write(self._path(shard, commit.attempt), _encoded(commit))
        return commit

    def found(self, shards: Sequence[Shard], *, reopen: bool = False) -> dict[int, Commit]:
        """Read the commits of finished tasks, if what they name is there.

        ``reopen`` withdraws the others, so that their tasks can be run again.
        """
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
        if reopen and final is None:
            self._remove_others(tasks, found)
        return found

    def _remove_others(self, tasks: Collection[int], found: Mapping[int, Commit]) -> None:
        """Remove what other attempts at some tasks have left, for the room that it takes."""
        kept = set()
        for name in names(self.folder / FOLDER):
            number, _, attempt = name.removesuffix(".json").partition("-")
            task = int(number) if number.isdecimal() else -1
            if task in tasks and (task not in found or found[task].attempt != attempt):
                files.remove(self.folder / FOLDER / name)
            else:
                kept.add(attempt)
        for target in self.targets.values():
            remove_attempts(target, kept)

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

    def open(self) -> None:
        """Let workers publish, also those of other processes; nothing to do under a lock."""

    def close(self) -> None:
        """Let nobody publish any more; nothing to do under a lock, as all that follows."""

    def done(self, shard: Shard) -> Commit | None:
        """Give the commit of a task that another process has finished in the meantime."""
        return None

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

    def storage(self, shard: Shard, attempt: str) -> Place:
        return place_at(self.targets[shard.part])

    def settle(self, shard: Shard, commit: Commit, storage: Place | None) -> Commit:
        target, names, claim = self.storage(shard, ""), names_of(shard.path), NEW
        try:
            there = {name: target.etag(name) for name in names}
            if any(there.values()) or self._etag(shard):
                claim = self._claim(shard)
                there = {name: target.etag(name) for name in names}
                if self._etag(shard) != claim:
                    raise ConditionError
            self._require_open(shard)
            for name in names:
                if storage is not None:
                    commit.etags[name] = storage.publish(name, there[name])
                elif there[name]:
                    files.remove(target.folder / name)
            commit.etag = self._write(shard, _encoded(commit), claim)
            return commit
        except ConditionError:  # another worker was faster, and has just published it
            return self._awaited(shard)
        finally:
            if storage is not None:
                for name in names:
                    storage.discard(name)

    def done(self, shard: Shard) -> Commit | None:
        etag = self._etag(shard)
        return self._read(shard, etag=etag) if etag else None

    def found(self, shards: Sequence[Shard], *, reopen: bool = False) -> dict[int, Commit]:
        etags = self._etags()
        known = [shard for shard in shards if shard.number in etags]
        place = place_at(self.folder)
        read = place.each(lambda shard: self._read(shard, etag=etags[shard.number]), known)
        commits = {commit.number: commit for commit in read if commit is not None}
        again = {shard.number for shard in self._differing(known, commits)}
        if not self.are_final:
            again |= {number for number, commit in commits.items() if commit.is_doubtful}
        for shard in shards if reopen else ():
            if shard.number in again:
                check()
                with suppress(ConditionError):  # then it is another one by now
                    self._write(shard, _token(), commits[shard.number].etag)
        return {number: commit for number, commit in commits.items() if number not in again}

    def open(self) -> None:
        files.write(self.folder / _OPEN, b"")
        try:
            self._require_begun()
        except TakenOverError:
            self.close()
            raise

    def close(self) -> None:
        files.remove(self.folder / _OPEN)

    def differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        self._require_begun()
        return self._differing(shards, commits)

    def abandon(self, shards: Sequence[Shard]) -> None:
        for part, folder in self.targets.items():
            names = {n for s in shards if s.part == part for n in names_of(s.path)}
            if names:
                with suppress(StorageError):  # the error that brought us here is the one to report
                    place_at(folder).abandon(names)

    def _differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        if not commits:
            return []
        listed = {part: place_at(folder).etags() for part, folder in self.targets.items()}
        etags, found = self._etags(), []
        for shard in shards:
            if (commit := commits.get(shard.number)) is not None:
                there = listed[shard.part]
                files_of = {name: there[name] for name in names_of(shard.path) if name in there}
                if (etags.get(shard.number), files_of) != (commit.etag, commit.etags):
                    found.append(shard)
        return found

    def _etags(self) -> dict[int, str]:
        """List the commits, by their tasks, with their etags; also what stands in their place."""
        found = place_at(self.folder / FOLDER).etags().items()
        numbers = ((name.removesuffix(".json"), etag) for name, etag in found)
        return {int(name): etag for name, etag in numbers if name.isdecimal()}

    def _claim(self, shard: Shard) -> str:
        """Claim a task, unless somebody commits it soon; give the etag of the claim."""
        end = time.monotonic() + _GRACE
        while True:
            self._require_open(shard)
            etag = self._etag(shard)
            if etag and self._read(shard, etag=etag) is not None:
                raise ConditionError
            if time.monotonic() >= end:
                try:
                    return self._write(shard, _token(), etag)
                except ConditionError:  # somebody else has, and may be at work
                    end = time.monotonic() + _GRACE
            check()
            time.sleep(_LOOK)

    def _awaited(self, shard: Shard) -> Commit:
        """Wait for the commit of a shard that another worker has just published."""
        end = time.monotonic() + _PATIENCE
        while (commit := self.done(shard)) is None:
            self._require_open(shard)
            if time.monotonic() > end:
                raise self._taken(shard)
            check()
            time.sleep(_LOOK)
        return commit

    def _require_open(self, shard: Shard) -> None:
        """Raise if another process finishes this build, or has, while a shard of it was made."""
        if not place_at(self.folder).etag(_OPEN):
            raise self._taken(shard)

    def _require_begun(self) -> None:
        """Raise if this plan is not under way any more, in no part of a split."""
        notes = map(manifest.load_unfinished, self.targets.values())
        if not any(note is not None and note.plan == self.plan for note in notes):
            raise _taken(self.folder)

    def _etag(self, shard: Shard) -> str:
        """Give the etag of the commit of a task, or of what stands in its place; NEW if nothing."""
        return place_at(self.folder / FOLDER).etag(self._path(shard).name)

    def _write(self, shard: Shard, data: bytes, condition: str) -> str:
        return place_at(self.folder / FOLDER).write(self._path(shard).name, data, condition)

    def _taken(self, shard: Shard) -> TakenOverError:
        return _taken(self.targets[shard.part] / shard.path)


def _taken(path: Location) -> TakenOverError:
    what = "another process works on the same build, or has finished it"
    return TakenOverError(what, path=path, fix="run the same command again")


def _token() -> bytes:
    """Make what is written in the place of a commit: it is none, and never the same."""
    return secrets.token_bytes(16)
