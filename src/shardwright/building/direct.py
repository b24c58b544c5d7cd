"""Commits at an object store, where shards go straight to their names.

No lock keeps two runs of one plan apart there, and a worker that was thought dead may go on. So
every step is a conditional write, which fails if somebody else has taken a step in the meantime:

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwright.building.commits import FOLDER, Commit, Commits, commit_name, decode, encode
from shardwright.building.plan import Shard
from shardwright.errors import SourceChangedError, StorageError
from shardwright.interrupts import check
from shardwright.shards.format import manifest
from shardwright.shards.format.writer import names_of
from shardwright.storage import files
from shardwright.storage.objects import NEW, ConditionError, together
from shardwright.storage.place import Place
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Location, Url, remote
from shardwright.store.records import NOT_JSON

_OPEN = "open"  # the name of the file
_GRACE = 15  # seconds for which another worker may be about to commit
_PATIENCE = 60  # seconds in which another worker must have committed
_LOOK = 0.5  # seconds between two looks


class TakenOverError(SourceChangedError):
    """Another process has finished this build, or a part of it."""


@dataclass(frozen=True)
class DirectCommits(Commits):
    """Commits of a plan at a URL."""

    def storage(self, shard: Shard) -> Place:
        return RemotePlace(self._target(shard.part))

    def begin(self, shard: Shard) -> None:
        """Do nothing: the first commit counts."""

    def settle(self, shard: Shard, commit: Commit, storage: Place | None) -> Commit:
        names = names_of(shard.path)
        path, claim = self._path(shard), NEW
        try:
            there = self._there(shard, names)
            if any(there.values()) or path.head() is not None:
                claim = self._claim(shard)
                there = self._there(shard, names)
                if self._etag(path) != claim:
                    raise ConditionError
            self._require_open(shard)
            for name in names:
                if storage is not None:
                    commit.etags[name] = storage.publish(name, there[name])
                elif there[name]:
                    (self._target(shard.part) / name).remove()
            commit.etag = path.write(encode(commit), claim)
            return commit
        except ConditionError:  # another worker was faster
            return self._awaited(shard)
        finally:
            if storage is not None:
                for name in names:
                    storage.discard(name)

    def done(self, shard: Shard) -> Commit | None:
        etag = self._etag(self._path(shard))
        return self._read(shard, etag) if etag else None

    def found(self, shards: Sequence[Shard], *, reopen: bool = False) -> dict[int, Commit]:
        etags = self._etags()
        known = [shard for shard in shards if shard.number in etags]
        read = together(lambda shard: self._read(shard, etags[shard.number]), known)
        commits = {commit.number: commit for commit in read if commit is not None}
        again = {shard.number for shard in self._differing(known, commits)}
        if not self.are_final:
            again |= {number for number, commit in commits.items() if commit.is_doubtful}
        if reopen:
            for shard in shards:
                if shard.number in again:
                    check()
                    with suppress(ConditionError):  # then it is another one by now
                        self._path(shard).write(_token(), commits[shard.number].etag)
        return {number: commit for number, commit in commits.items() if number not in again}

    def open(self) -> None:
        self._open.write(b"")
        if not all(map(self._is_begun, self.targets)):  # another process has just finished it
            self._open.remove()
            what, fix = "another process has finished this build", "run the same command again"
            raise TakenOverError(what, path=self.folder, fix=fix)

    def close(self) -> None:
        self._open.remove()

    def differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        for shard in {shard.part: shard for shard in shards}.values():
            if not self._is_begun(shard.part):
                raise self._taken(shard)
        return self._differing(shards, commits)

    def _is_begun(self, part: str | None) -> bool:
        """Whether this plan is under way in the folder of a part."""
        note = manifest.load_unfinished(self._target(part))
        return note is not None and note.plan == self.plan

    def abandon(self, shards: Sequence[Shard]) -> None:
        for part in {shard.part for shard in shards}:
            names = {n for s in shards if s.part == part for n in names_of(s.path)}
            with suppress(StorageError):  # the error that brought us here is the one to report
                RemotePlace(self._target(part)).abandon(names)

    def _differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        if not commits:
            return []
        there = {part: _listed(target) for part, target in self.targets.items()}
        etags = self._etags()
        return [
            shard
            for shard in shards
            if (commit := commits.get(shard.number)) is not None
            and (
                etags.get(shard.number) != commit.etag
                or {n: e for n in names_of(shard.path) if (e := there[shard.part].get(n))}
                != commit.etags
            )
        ]

    def _there(self, shard: Shard, names: Sequence[str]) -> dict[str, str]:
        """Give the etags of the files of a shard; NEW for those that are not there."""
        return {name: self._etag(self._target(shard.part) / name) for name in names}

    def _etag(self, path: Url) -> str:
        found = path.head()
        return NEW if found is None else found.etag

    def _etags(self) -> dict[int, str]:
        """List the commits, by their tasks, with their etags; also what stands in their place."""
        folder = self.folder / FOLDER
        found = {name.removesuffix(".json"): etag for name, etag in _listed(folder).items()}
        return {int(name): etag for name, etag in found.items() if name.isdecimal()}

    def _read(self, shard: Shard, etag: str) -> Commit | None:
        """Read a commit, unless a claim stands in its place."""
        with suppress(FileNotFoundError, *NOT_JSON):
            commit = decode(files.read(self._path(shard)))
            if self.is_of(commit, shard):
                commit.etag = etag
                return commit
        return None

    def _claim(self, shard: Shard) -> str:
        """Claim a task, unless somebody commits it soon; give the etag of the claim."""
        path, end = self._path(shard), time.monotonic() + _GRACE
        while True:
            self._require_open(shard)
            etag = self._etag(path)
            if etag and self._read(shard, etag) is not None:
                raise ConditionError
            if time.monotonic() >= end:
                try:
                    return path.write(_token(), etag)
                except ConditionError:  # somebody else has, and may be at work
                    end = time.monotonic() + _GRACE
            check()
            time.sleep(_LOOK)

    def _path(self, shard: Shard) -> Url:
        return remote(self.folder) / commit_name(shard)

    def _target(self, part: str | None) -> Url:
        return remote(self.targets[part])

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
        if self._open.head() is None:
            raise self._taken(shard)

    @property
    def _open(self) -> Url:
        return remote(self.folder) / _OPEN

    def _taken(self, shard: Shard) -> TakenOverError:
        what = "another process has written this shard of the same build"
        fix = "run the same command again"
        return TakenOverError(what, path=self._target(shard.part) / shard.path, fix=fix)


def _token() -> bytes:
    """Make what is written in the place of a commit: it is none, and never the same."""
    return secrets.token_bytes(16)


def _listed(folder: Location) -> dict[str, str]:
    """List the files of a folder, with their etags."""
    return {name: found.etag for name, found in remote(folder).walk()}
