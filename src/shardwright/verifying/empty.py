"""Checks the empty caption beside the shards; its few files are always read."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from shardwright.packing.outdated import newer
from shardwright.shards.format.empty import empty_faults, empty_folder, empty_members, empty_name
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.files import read_existing
from shardwright.storage.urls import Location, names
from shardwright.store import commands
from shardwright.store.findings import EMPTY_OUTDATED, Finding
from shardwright.store.store import Store

_AGAIN = "pack again with --overwrite"
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
    faulty = {suffix for suffix, _ in empty_faults(source, store.recipe, read_data=True)}
    for suffix, data in source.items():
        path = store.empty(suffix)
        if suffix not in listed:
            what, fix = "is not in the shards", commands.pack(store, folder, "--append")
            yield Finding("empty_left_out", str(path), None, what, f"run {fix}", damage=False)
        elif valid.get(suffix, data) != data:
            # As with arrays: a valid file that was put there later is a change of the store.
            later = suffix not in faulty and newer(path.stat(), (place / suffix).stat())
            kind = EMPTY_OUTDATED if later else "source_differs"
            fix = _AGAIN if later else f"if the store is right, {_AGAIN}"
            yield Finding(
                kind, empty_name(suffix), None, f"differs from {path}", fix, damage=not later
            )


def _finding(kind: str, suffix: str, what: str) -> Finding:
    return Finding(kind, empty_name(suffix), None, what, _FIX)
