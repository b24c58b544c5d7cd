"""The stage of ``build``, and how its finished shards move from there to their places.

It is in the state folder of the output, where no loader looks. Each attempt at a shard has a folder
there, with the layout of a shard folder. A shard keeps its number or gets a smaller one, if a task
before it made no shard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
import xxhash

from shardwright.errors import DamageError
from shardwright.layout import STATE_FOLDER
from shardwright.shards.format import index
from shardwright.shards.format.index import ShardIndex, index_name
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.names import bucket_folder, existing_buckets
from shardwright.shards.format.records import records_name
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import At, Location, names

STAGE_FOLDER = "build"
_ATTEMPT = re.compile("[0-9a-f]{16}")
_FIX = "build again with --overwrite"


def stage_of(output: At) -> At:
    """Give the stage of an output folder."""
    return output / STATE_FOLDER / STAGE_FOLDER


def remove_stage(output: Location) -> None:
    """Remove the stage with all that a build has left there."""
    place_at(stage_of(output)).remove_all()


def remove_attempts(output: Location, keep: Collection[str]) -> None:
    """Remove what attempts at shards have left in the stage, except some attempts."""
    stage = stage_of(output)
    for name in names(stage):
        if _ATTEMPT.fullmatch(name) and name not in keep:
            place_at(stage / name).remove_all()


def sync_stage(output: Path) -> None:
    """Make every name in the stage durable, also those that a killed run did not sync.

    A commit says that a shard is there, so no power cut may take a folder that it is in. What has
    moved out is made durable at its place first, and only then it may be gone from the stage.
    """
    files.sync_parent(output)
    places = [output, *(output / bucket_folder(bucket) for bucket in existing_buckets(output))]
    for folder in (*places, output / STATE_FOLDER):
        files.sync_folder(folder)
    for top in (output / STATE_FOLDER / index.INDEX_FOLDER, stage_of(output)):
        for path, _, _ in os.walk(top):
            files.sync_folder(Path(path))


def make_folders(output: Location, paths: Iterable[str]) -> None:
    """Make the folders of some shards, and of their indexes."""
    for path in paths:
        for name in (path, index_name(path)):
            files.make_folder((output / name).parent)


def move_shard(stage: Path, output: Path, entry: ShardEntry, path: str) -> ShardEntry:
    """Move a published shard out of the stage to a path of its bucket; give its entry there.

    After a kill at any step, the same call does the rest and gives the same entry. The tar moves
    last: under its final name it has its index. The caller syncs the folders of the output, and
    only then removes the stage, or a power cut could lose what has moved.
    """
    make_folders(output, [path])
    _move(stage / records_name(entry.path), output / records_name(path))
    checksum = _move_index(stage / index_name(entry.path), output / index_name(path), entry, path)
    _move(stage / entry.path, output / path)
    return msgspec.structs.replace(entry, path=path, index_xxh3=checksum)


def _is_staged(source: Path, target: Path) -> bool:
    """Whether a file is still in the stage; raise if it is in neither place."""
    if source.exists():
        return True
    if not target.exists():
        raise DamageError("is missing", path=source, fix=_FIX)
    return False


def _move(source: Path, target: Path) -> None:
    if _is_staged(source, target):
        files.move(source, target)


def _move_index(source: Path, target: Path, entry: ShardEntry, path: str) -> str:
    """Move an index, or write it again if it has to name another path; give its checksum."""
    if not _is_staged(source, target):
        data = index.read(target)
        head = index.decode(data, target).head
        if (head.shard, head.xxh3) != (path, entry.xxh3):
            raise DamageError("is the index of another shard", path=target, fix=_FIX)
        return xxhash.xxh3_64_hexdigest(data)
    if path == entry.path:
        files.move(source, target)
        return entry.index_xxh3
    found = index.decode(index.read(source), source)
    data = index.encode(ShardIndex(msgspec.structs.replace(found.head, shard=path), found.table))
    files.write(target, data)  # which is on the disk before the old one goes
    files.remove(source)
    return xxhash.xxh3_64_hexdigest(data)
