"""Compares shards with the store they were packed from, byte for byte.

A difference is damage, unless the shard is as it was written and the store has changed since.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardwright import regular
from shardwright.errors import InputMissingError, ShardwrightError
from shardwright.interrupts import check
from shardwright.packing import again
from shardwright.packing.choice import wanted
from shardwright.packing.outdated import newer
from shardwright.progress import Progress, quantity
from shardwright.recipes import JSON_SUFFIX, Component
from shardwright.shards.format import consistency, index, keys
from shardwright.shards.format.manifest import Manifest, ShardEntry
from shardwright.shards.format.parts import top_folder
from shardwright.shards.format.record_members import json_member, mask_member
from shardwright.shards.format.tarread import Fault
from shardwright.storage.files import absence
from shardwright.storage.objects import Object
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, relative_name
from shardwright.store import commands, content, npy, provenance, records
from shardwright.store.findings import NOT_COMPARED, OUTDATED, Finding
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError
from shardwright.store.store import Store, read_identity
from shardwright.verifying.sample import MemberData

PACK_AGAIN = "pack again with --overwrite"
_ANOTHER = "the shards were packed from another store"
_CHUNK = 1 << 20  # bytes compared at a time


@dataclass(frozen=True)
class Source:
    """A store, and the place of every record in its JSONL."""

    store: Store
    lines: Mapping[str, int]  # offset by image_id; the latest if one id has several records
    update: str = ""  # how to bring the shards up to date

    def faults(
        self,
        image_id: str,
        places: Mapping[str, MemberData],
        written: os.stat_result | Object | None,
    ) -> Iterator[Fault]:
        """Find differences between a sample and the store.

        ``written`` are the times of its shard, if every byte of that is as it was written. Then
        what the store has changed since is one fault of the sample, and no damage.
        """
        later = []
        for fault, source in self._differences(image_id, places):
            if written and (source is None or _rewritten(*source, written)):
                later.append(fault.what if fault.member is None else f"{fault.member} {fault.what}")
            else:
                yield fault
        if later:
            yield Fault(OUTDATED, ", ".join(later), damage=False, fix=self.update)

    def _differences(
        self, image_id: str, places: Mapping[str, MemberData]
    ) -> Iterator[tuple[Fault, tuple[Path, Component] | None]]:
        """Find each member that differs; give also its array file, where it comes from one."""
        if image_id not in self.lines:
            yield Fault("record_gone", f"has no record in {self.store.jsonl}"), None
            return
        recipe = self.store.recipe
        with regular.opened(self.store.jsonl) as jsonl:
            jsonl.seek(self.lines[image_id])
            line = jsonl.readline(records.LONGEST_LINE).rstrip(b"\r\n")
        with suppress(BadRecordError):  # valid a moment ago; if it changed, the arrays still count
            record = records.parse(line)
            expected: dict[str, bytes | None] = {JSON_SUFFIX: json_member(record, recipe)}
            for mask in recipe.masks:
                valid = records.is_mask(record.get(mask.field), mask)
                expected[mask.suffix] = mask_member(record, mask) if valid else None
            for suffix, data in expected.items():
                place = places.get(suffix)
                if place and data != place.read(place.size, 0):
                    what = f"differs from the record in {self.store.jsonl}"
                    yield Fault("record_differs", what, suffix), None
        for component in recipe.components:
            path = self.store.array(component, image_id)
            place = places.get(component.suffix)
            if place and not _equal(place, path):
                fault = Fault("source_differs", f"differs from {path}", component.suffix)
                if not path.exists():
                    fault = Fault(NOT_COMPARED, str(path), damage=False)
                yield fault, (path, component)


def read_source(store: Store, progress: Progress) -> Source:
    """Find the record of every id in a store."""
    if not store.jsonl.is_file():
        fix = "give the folder of a store to --against"
        raise InputMissingError(absence(store.jsonl), path=store.jsonl, fix=fix)
    lines: dict[str, int] = {}
    # pack skips a line that is not a record, so no shard holds it.
    for line, record in records.walk(store.jsonl, records.parse, progress=progress):
        if records.is_image_id(image_id := record.get("image_id")):
            lines[image_id] = line.offset
    return Source(store, lines)


def _rewritten(path: Path, component: Component, shard: os.stat_result | Object) -> bool:
    """Whether a valid array was put there after the shard; otherwise the file is damaged."""
    try:
        source = npy.open_array(path)
    except BadArrayError:
        return False
    try:
        content.check(source, component)
        return newer(os.fstat(source), shard)
    except BadArrayError:
        return False
    finally:
        os.close(source)


def _equal(place: MemberData, path: Path) -> bool:
    """Whether a member holds exactly the bytes of a file."""
    try:
        source = npy.open_array(path)
    except BadArrayError:
        return False
    try:
        if os.fstat(source).st_size != place.size:
            return False
        return all(
            os.pread(source, _CHUNK, at)
            == place.file.pread(place.offset + at, min(_CHUNK, place.size - at))
            for at in range(0, place.size, _CHUNK)
        )
    finally:
        os.close(source)


def update(store: Store, folder: Location, packed: Manifest) -> str:
    """Say how shards follow a store that has changed; --sync does so only for packed ones."""
    if not place_at(folder).can_replace or any(run.is_build for run in packed.runs):
        return PACK_AGAIN
    top = top_folder(folder, packed.runs[-1].settings)
    if _is_of_another(packed, store):
        return f"{_ANOTHER}; to replace their samples, run {again.overwrite(store, top)}"
    if consistency.other_kind(packed, store.recipe, provenance.readable(store.folder)):
        return f"run {again.overwrite(store, top)}"
    return f"run {commands.pack(store, top, '--sync')}"


def _is_of_another(packed: Manifest, store: Store) -> bool:
    """Whether the shards were packed from another store, which pack would not replace."""
    known = consistency.store_ids(packed)
    return bool(known) and read_identity(store) not in known


def other_recipe(store: Store, folder: Location, packed: Manifest) -> Finding | None:
    """Report that a store has another recipe than its shards."""
    if not (changes := consistency.other_recipe(packed, store.recipe)):
        return None
    what, fix = f"the store has another recipe than its shards ({changes})", PACK_AGAIN
    if place_at(folder).can_replace:
        top = top_folder(folder, packed.runs[-1].settings)
        fix = f"run {again.overwrite(store, top)}"
    return Finding("other_recipe", str(store.folder), None, what, fix, damage=False)


def left_out(
    source: Source,
    found: set[str],
    folder: Location,
    packed: Manifest | None,
    lost: Sequence[ShardEntry] = (),
) -> Iterator[Finding]:
    """Report the records of the store whose keys were not found; not those of lost shards."""
    store, longest = source.store, source.store.recipe.longest_key
    for entry in lost:
        with suppress(ShardwrightError):  # then its samples are not known
            ids = index.load_listed(folder, entry).head.ids
            found = found.union(keys.keys(ids, longest))
    asked = None
    if packed is not None:
        settings = packed.runs[-1].settings
        asked = wanted(store, settings, top_folder(folder, settings))
    absent = []
    for image_id in source.lines:
        check()
        if (asked is None or image_id in asked) and keys.key(image_id, longest) not in found:
            absent.append(image_id)
    if absent:
        count = quantity(len(absent), "records")
        what = f"has {count} without a sample in the shards, for example {absent[0]}"
        fix = (
            "the packed JSONL is not recorded, so they may be held out on purpose; or --limit or "
            "--bucket excluded them, or they are not ready"
        )
        if packed is not None:
            fix = _to_pack_them(store, folder, packed, bool(lost))
        yield Finding("left_out", str(store.jsonl), None, what, fix, damage=False)


def _to_pack_them(store: Store, folder: Location, packed: Manifest, some_lost: bool) -> str:
    """Say why records are not in the shards, or how to pack them."""
    names, last = packed.jsonls(), packed.runs[-1]
    if _is_of_another(packed, store):
        return _ANOTHER
    if last.is_build and not names:
        return "the shards were made by shardwright build, not from this store"
    if names and relative_name(store.jsonl, store.folder) not in names:  # the rest may be held out
        paths = " and ".join(str(store.of(name).jsonl) for name in names)
        return f"the shards were packed from {paths}, a part of the store"
    top, can_replace = top_folder(folder, last.settings), place_at(folder).can_replace
    if listed := consistency.other_settings(packed, provenance.readable(store.folder)):
        how = f"to pack all again, run {again.overwrite(store, top)}" if can_replace else PACK_AGAIN
        return f"the store was made with other settings ({listed}); {how}"
    flags = msgspec.structs.replace(last.settings, limit=None, buckets=[]).flags(store.folder, top)
    fix = f"to pack those that are ready, run {commands.pack(store, top, '--append', *flags)}"
    if some_lost:
        fix += " once the missing shards are restored"
        fix += f", or run {again.overwrite(store, top)}" if can_replace else ""
    return fix
