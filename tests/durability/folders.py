"""What a folder holds, byte for byte."""

from __future__ import annotations

from pathlib import Path

import xxhash

from shardwright.shards import manifest
from tests.faults import contents

Contents = dict[str, bytes | None]


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


def assert_manifest_speaks_true(folder: Path) -> None:
    """At any moment: what a manifest lists is there, whole, and not mixed with anything else."""
    listed = manifest.load_manifest(folder)
    if listed is None:
        return
    held = contents(folder)
    for entry in listed.shards:
        data = held[entry.path]
        assert data is not None
        assert xxhash.xxh3_128_hexdigest(data) == entry.xxh3, entry.path
    strangers = shard_names(held) - {entry.path for entry in listed.shards}
    unfinished = manifest.load_unfinished(folder)
    if unfinished is None:
        assert not strangers
    elif not unfinished.append:  # new buckets may fill up; a listed one holds what is listed
        buckets = {f"bucket_{entry.bucket}" for entry in listed.shards}
        assert not {name for name in strangers if name.split("/")[0] in buckets}
