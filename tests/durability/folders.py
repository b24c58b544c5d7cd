"""What a folder holds, byte for byte."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import xxhash

from shardwright.layout import JSONL_NAME
from shardwright.shards.format import manifest
from shardwright.shards.format.parts import parts_of
from shardwright.shards.format.records import records_name
from shardwright.store import facts
from shardwright.store.journal import journal_path
from shardwright.store.store import Store
from tests.faults import contents

Contents = dict[str, bytes | None]
_STAGE = ".shardwright/build/"
JOURNAL = journal_path(Path(JSONL_NAME)).name
JOURNALS = {
    JOURNAL,
    str(journal_path(facts.path_of(Store.at(Path())))),
}  # of the records, and of the facts


def restore(folder: Path, held: Contents) -> None:
    """Make a folder hold exactly this; it must not be there."""
    folder.mkdir(parents=True)
    for name, data in held.items():
        path = folder / name
        if data is None:
            path.mkdir()
        else:
            path.write_bytes(data)


def shard_names(held: Contents) -> set[str]:
    """Name the shards."""
    return {name for name in held if name.endswith(".tar")}


@lru_cache  # thousands of power cuts leave one of a few files
def record_ids(lines: bytes) -> frozenset[str]:
    """Name the images that have a complete record among these lines."""
    found = re.findall(rb'^{"image_id":"(\w+)".*}\n', lines, re.M)
    return frozenset(name.decode() for name in found)


def held(left: Contents | None) -> set[str]:
    """Name all that a folder has of what can be reported: its files, and the records in them."""
    if left is None:
        return set()
    return set(left).union(*(record_ids(left.get(name) or b"") for name in (JSONL_NAME, JOURNAL)))


def assert_arrays_are_whole(folder: Path, start: Contents | None, expected: Contents) -> None:
    """At any moment: an array is an old one or a new one, and nothing in between."""
    for name, data in contents(folder).items():
        before = start or {}
        if name.startswith(_STAGE) and name.endswith(".npy"):
            assert data in [*before.values(), *expected.values()], name
        elif name.endswith(".npy"):  # also one that is recomputed and not in use yet
            place = name.removeprefix(".shardwright/next/")
            known = [held[n] for held in (before, expected) for n in (name, place) if n in held]
            # Under a name of neither, it is on the way from an old id to a new one.
            assert data in (known or before.values()), name


def assert_shards_are_whole(folder: Path, start: Contents | None, expected: Contents) -> None:
    """At any moment: a shard, also one that waits to get its place, is an old one or a new one."""
    known = {data for held in (start or {}, expected) for data in held.values()}
    for name, data in contents(folder).items():
        if name.endswith(".tar") or (name.endswith(".jsonl") and "/bucket_" in name):
            assert data in known, name


def assert_manifest_speaks_true(folder: Path) -> None:
    """At any moment: what a manifest lists is there, whole, and not mixed with anything else."""
    for part in parts_of(folder):
        assert_manifest_speaks_true(folder / part)
    listed = manifest.load_manifest(folder)
    if listed is None:
        return
    held = contents(folder)
    for entry in listed.shards:
        data = held[entry.path]
        assert data is not None
        assert xxhash.xxh3_128_hexdigest(data) == entry.xxh3, entry.path
        lines = held[records_name(entry.path)]
        assert lines is not None
        assert xxhash.xxh3_64_hexdigest(lines) == entry.records_xxh3, entry.path
    strangers = shard_names(held) - {entry.path for entry in listed.shards}
    unfinished = manifest.load_unfinished(folder)
    if unfinished is None:
        assert not strangers
    elif not (
        unfinished.append or unfinished.sync
    ):  # new buckets may fill up; a listed one holds what is listed
        buckets = {f"bucket_{entry.bucket}" for entry in listed.shards}
        assert not {name for name in strangers if name.split("/")[0] in buckets}
