"""The empty caption on its way from the store to the shard folder."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from shardwright.errors import DamageError
from shardwright.shards.format import manifest
from shardwright.shards.format.empty import empty_faults, empty_folder, empty_members
from shardwright.shards.format.manifest import Manifest
from shardwright.storage import files
from shardwright.storage.urls import Location, names
from shardwright.store import commands
from shardwright.store.store import Store


def read(store: Store) -> dict[str, bytes]:
    """Read what a store has for the empty caption, by suffix; raise if it is damaged."""
    members = empty_members(store.recipe)
    found = files.read_existing({suffix: store.empty(suffix) for suffix in members})
    for suffix, what in empty_faults(found, store.recipe):
        fix = f"delete it and run {commands.derive(store)}"
        raise DamageError(f"is damaged ({what})", path=store.empty(suffix), fix=fix)
    return found


def publish(output: Location, base: Manifest, wanted: Mapping[str, bytes]) -> dict[str, str]:
    """Put the empty caption beside the shards; give the checksums for the manifest.

    That of shards that stay is kept, and only what is missing is added.
    """
    folder = empty_folder(output)
    there = files.read_existing({name: folder / name for name in names(folder)})
    listed = base.empties() if base.shards else {}
    kept = {name: data for name, data in there.items() if listed.get(name) == _checksum(data)}
    new = {**wanted, **kept}
    if any(new.get(name) != data for name, data in there.items()):
        manifest.remove_manifest(output)  # it may list what is replaced now
    for name in there.keys() - new.keys():
        files.remove(folder / name)
    for name, data in new.items():
        if there.get(name) != data:
            files.make_folder(folder)
            files.write(folder / name, data)
    if new:
        files.sync_folder(folder)  # also what a killed run did not sync
    else:
        files.remove_empty_folders(folder)
    return {name: _checksum(new[name]) for name in sorted(new)}


def _checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)
