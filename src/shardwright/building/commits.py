"""Commits: what each task of a build has made, written when its shard is on the disk.

The manifest is written from them alone. A task whose commit is there is not run again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from shardwright.building.built import Built
from shardwright.building.inputs import GONE, UNREADABLE
from shardwright.building.ledger import Left
from shardwright.building.plan import Shard
from shardwright.interrupts import check
from shardwright.shards.format.index import index_name
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.moving import make_folders, stage_of
from shardwright.shards.format.records import records_name
from shardwright.shards.format.writer import publish
from shardwright.storage import files
from shardwright.storage.extents import may_pass
from shardwright.storage.place import Place, place_at
from shardwright.storage.urls import Location, local
from shardwright.store.facts import Quality, Truncated
from shardwright.store.records import NOT_JSON
from shardwright.summary import Count

MOVING_NAME = "moving"  # in a stage: shards may have moved out of it
FOLDER = "commits"
_FINAL = "final"  # beside the commits: shards may have been published from them


class Commit(msgspec.Struct, kw_only=True):
    """What became of the samples of one task."""

    plan: str
    number: int
    task: str = ""  # its digest
    shard: ShardEntry | None = None  # None if all samples are left out
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
        return any(left.reason == UNREADABLE and may_pass(left.image_path) for left in self.left)


Targets = Mapping[str | None, Location]  # the shard folder of each part


@dataclass(frozen=True)
class Commits(ABC):
    """The commits of a plan, and the place where its workers leave their shards."""

    plan: str
    folder: Location  # of the plan
    targets: Targets

    @abstractmethod
    def storage(self, shard: Shard) -> Place:
        """Give the place where a worker writes a shard."""

    @abstractmethod
    def begin(self, shard: Shard) -> None:
        """Begin a task, perhaps again."""

    @abstractmethod
    def settle(self, shard: Shard, commit: Commit, storage: Place | None) -> Commit:
        """Publish a finished shard and commit its task, which ends it; give the commit that counts.

        That of another worker counts if it came first. Without a storage there is no shard.
        """

    @abstractmethod
    def found(self, shards: Sequence[Shard], *, reopen: bool = False) -> dict[int, Commit]:
        """Read the commits of finished tasks, if what they name is there.

        ``reopen`` withdraws the others, so that their tasks can be run again.
        """

    @property
    def are_final(self) -> bool:
        """Whether none is made again, whatever its inputs were."""
        return (self.folder / _FINAL).is_file()

    def finalize(self) -> None:
        """Note that all are there, before the first shard is published from them."""
        files.write(self.folder / _FINAL, b"")

    def is_of(self, commit: Commit, shard: Shard) -> bool:
        """Whether a commit is that of a task; its shard is moved from the path that it names."""
        found = (commit.plan, commit.number, commit.task)
        if found != (self.plan, shard.number, shard.digest):
            return False
        made = commit.shard
        return made is None or (
            (made.path, made.bucket) == (shard.path, shard.bucket)
            and made.samples <= len(shard.samples)
        )

    def open(self) -> None:  # noqa: B027 - nothing to do in a folder, which has a lock
        """Let workers publish, also those of other processes."""

    def close(self) -> None:  # noqa: B027 - the same
        """Let nobody publish any more."""

    def done(self, shard: Shard) -> Commit | None:
        """Give the commit of a task that another process has finished in the meantime."""
        return None

    def differing(self, shards: Sequence[Shard], commits: Mapping[int, Commit]) -> list[Shard]:
        """Find the committed shards whose files are not those of their commits."""
        return []

    def abandon(self, shards: Sequence[Shard]) -> None:  # noqa: B027 - the same
        """Remove what the workers of these tasks, which were ended, have left half done."""


@dataclass(frozen=True)
class StagedCommits(Commits):
    """Commits in a local folder, whose shards are staged until all are there."""

    def storage(self, shard: Shard) -> Place:
        stage = stage_of(local(self.targets[shard.part]))
        make_folders(stage, [shard.path])
        return place_at(stage)

    def begin(self, shard: Shard) -> None:
        # Of a worker that died after it: what is made now may be rounded in another way.
        files.withdraw(self._path(shard))

    def settle(self, shard: Shard, commit: Commit, storage: Place | None) -> Commit:
        if storage is not None:
            publish(storage, shard.path)
            for name in (index_name(shard.path), shard.path):
                files.sync_folder((storage.folder / name).parent)
        files.write(self._path(shard), encode(commit))
        return commit

    def found(self, shards: Sequence[Shard], *, reopen: bool = False) -> dict[int, Commit]:
        final = self.are_final
        commits = {shard.number: self._load(shard, final) for shard in shards}
        return {number: commit for number, commit in commits.items() if commit is not None}

    def _load(self, shard: Shard, final: bool) -> Commit | None:
        check()
        with suppress(OSError, *NOT_JSON):
            commit = decode(files.read(self._path(shard)))
            if not self.is_of(commit, shard):
                return None
            there = commit.shard is None or _is_there(commit.shard, self.targets[shard.part])
            counts = final or not commit.is_doubtful
            return commit if there and counts else None
        return None

    def _path(self, shard: Shard) -> Location:
        return self.folder / commit_name(shard)


def commit_name(shard: Shard) -> str:
    """Name the file of a commit, below that of its plan."""
    return f"{FOLDER}/{shard.number:06}.json"


def encode(commit: Commit) -> bytes:
    """Write a commit."""
    return msgspec.json.encode(commit) + b"\n"


def decode(data: bytes) -> Commit:
    """Read a commit."""
    return msgspec.json.decode(data, type=Commit)


def _is_there(entry: ShardEntry, target: Location) -> bool:
    """Whether a shard is in the stage, complete; or it and its index have gone to their place."""
    stage = stage_of(target)
    staged, beside = stage / entry.path, (records_name(entry.path), index_name(entry.path))
    if staged.exists() and staged.stat().st_size != entry.bytes:
        return False
    if (stage / MOVING_NAME).exists():
        return staged.exists() or not (stage / index_name(entry.path)).exists()
    return staged.exists() and all((stage / name).exists() for name in beside)
