"""Checks the empty caption beside the shards; its few files are always read."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from shardwright.shards.format.empty import empty_faults, empty_folder, empty_members, empty_name
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.files import read_existing
from shardwright.storage.urls import Location, names
from shardwright.store import commands
from shardwright.store.findings import Finding
from shardwright.store.store import Store

_FIX = "restore it from a copy, or run the same pack with --append"


def check_empty(
    folder: Location, packed: Manifest, store: Store | None, *, read_data: bool
) -> Iterator[Finding]:
    """Compare the files with the manifest, the recipe and, if given, the store."""
    place, listed = empty_folder(folder), packed.empties()
    there = read_existing({name: place / name for name in names(place)})
    for suffix, checksum in listed.items():
        if suffix not in there:
            yield _finding("empty_missing", suffix, "is missing, but the manifest lists it")
        elif xxhash.xxh3_64_hexdigest(there[suffix]) != checksum:
            yield _finding("empty_differs", suffix, "its bytes are not those that were written")
            del there[suffix]
    for name in there.keys() - listed.keys():
        what, fix = "is not in the manifest, so it is not used", "the next pack removes it"
        yield Finding("empty_foreign", empty_name(name), None, what, fix, damage=False)
    valid = {suffix: there[suffix] for suffix in listed if suffix in there}
    for suffix, what in empty_faults(valid, packed.samples_of(), read_data=read_data):
        fix = "delete it in the store, derive, and pack with --overwrite"
        yield Finding("empty_invalid", empty_name(suffix), None, what, fix)
    if store is None or not packed.shards:
        return
    source = read_existing({s: store.empty(s) for s in empty_members(store.recipe)})
    for suffix, data in source.items():
        if suffix not in listed:
            what, fix = "is not in the shards", commands.pack(store, folder, "--append")
            path = str(store.empty(suffix))
            yield Finding("empty_left_out", path, None, what, f"run {fix}", damage=False)
        elif valid.get(suffix, data) != data:
            what = f"differs from {store.empty(suffix)}"
            fix = "if the store is right, pack again with --overwrite"
            yield Finding("source_differs", empty_name(suffix), None, what, fix)


def _finding(kind: str, suffix: str, what: str) -> Finding:
    return Finding(kind, empty_name(suffix), None, what, _FIX)
