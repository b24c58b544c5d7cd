"""The groups of a split that a file names: ``--split-by copies.jsonl``, as ``look`` writes it.

Groups of copies that are packed already stay in their part, whatever a later list says. It may name
other images first, and a group would change its part by their hash: what was trained on would
become validation. Images that were packed in several parts before they were known as copies go to
the first of these, train before all others, for the same reason.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from shardwright import regular
from shardwright.errors import InputMissingError, ShardwrightError, UsageError
from shardwright.interrupts import check
from shardwright.packing.start import current_run
from shardwright.progress import Progress
from shardwright.recipes.split import Split
from shardwright.shards.format import index, manifest
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.parts import parts_of, recorded_splits
from shardwright.storage.files import absence, explained
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined
from shardwright.store import records
from shardwright.store.commands import command

_FLAG = "--split-by"
_FIX = "give a list that shardwright look --duplicates wrote"


class _Line(msgspec.Struct):
    image_id: str
    kept: str  # another image of its group
    all_kept: list[str] = []  # others of its group, the first of it first


_decode = msgspec.json.Decoder(_Line).decode


def read_groups(split: Split | None, top: Location) -> dict[str, str]:
    """Give the first image of the group of each image that is in one, by id.

    The file is named relative to the folder ``top`` of the split.
    """
    order: dict[str, int] = {}  # of the ids, as they are named first
    above: dict[str, str] = {}  # by id: an image of its group that was named before, or itself

    def first(name: str) -> str:
        while above[name] != name:
            above[name] = above[above[name]]  # so that the next search is shorter
            name = above[name]
        return name

    for line in _lines(split, top):
        names = [*line.all_kept, line.kept, line.image_id]
        for name in names:
            order.setdefault(name, len(order))
            above.setdefault(name, name)
            one, other = sorted((first(names[0]), first(name)), key=order.__getitem__)
            above[other] = one
    return {name: first(name) for name in order}


def checksum(split: Split | None, top: Location) -> str | None:
    """Give the xxh3 of the file, if a split has one."""
    if split is None or not split.has_groups:
        return None
    return xxhash.xxh3_64_hexdigest(_read(split, top))


def _lines(split: Split | None, top: Location) -> Iterator[_Line]:
    if split is None or not split.has_groups:
        return
    for line in records.lines(io.BytesIO(_read(split, top))):
        try:
            yield _decode(line.data or b"")
        except records.NOT_JSON:
            what = f"{_FLAG}: line {line.number} is not an object with an image_id and a kept one"
            raise UsageError(what, path=_path(split, top), fix=_FIX) from None


def _read(split: Split, top: Location) -> bytes:
    path = _path(split, top)
    if not path.is_file():
        raise InputMissingError(f"{_FLAG}: {absence(path)}", path=path, fix=_restore(top, path))
    with explained(path):
        return regular.read(path)


def _restore(top: Location, path: Path) -> str:
    """Say how to go on without the file; if a folder was split by it, also with another."""
    if (last := current_run(parts_of(top).values())) is None:
        return _FIX
    look = command("look", str(top), "--duplicates", str(path))
    other = "build --overwrite" if last.is_build else "pack --sync"
    fix = f"restore it, or write it again with {look}"
    return f"{fix}, or follow another list with {other} {_FLAG} FILE"


def _path(split: Split, top: Location) -> Path:
    return joined(top, split.by or "")


@dataclass(frozen=True)
class Staying:
    """The parts that groups are packed in."""

    parts: Mapping[str, str] = field(default_factory=dict)  # by the first image of a group
    apart: int = 0  # groups in several parts
    example: str = ""  # of these

    def announce(self, top: Location, way: str | None, progress: Progress) -> None:
        """Report the groups that are in several parts."""
        if self.apart:
            are, count = ("is", "1 group") if self.apart == 1 else ("are", f"{self.apart:,} groups")
            what = f"{count} of copies {are} packed in several parts, {self.example}"
            goes = "it goes" if self.apart == 1 else "each goes"
            goes = "new copies go" if way == "append" else goes
            progress.say(f"{top}: {what}: {goes} to the first of these, train before all others")


def find_staying(
    split: Split | None,
    groups: Mapping[str, str],
    packed: Iterable[tuple[str | None, str]],
    first_ids: Mapping[str, str],
) -> Staying:
    """Find the parts of groups by those that images are ``packed`` in.

    ``groups`` are the first images of groups by image, ``first_ids`` the first ids of renamed ones.
    """
    if split is None or not groups:
        return Staying()
    renamed = {first: now for now, first in first_ids.items()}
    found: dict[str, dict[str | None, str]] = {}  # by group: an image of it in each part
    for part, image_id in packed:
        group = groups.get(image_id) or groups.get(renamed.get(image_id, image_id))
        if group is not None:
            found.setdefault(group, {}).setdefault(part, image_id)
    order = {group: [part for part in split.names if part in found[group]] for group in found}
    apart = [group for group, parts in order.items() if len(parts) > 1]
    example = ""
    if apart:
        one, other = (f"{found[apart[0]][part]} in {part}" for part in order[apart[0]][:2])
        example = f"for example {one} and {other}"
    return Staying({group: parts[0] for group, parts in order.items()}, len(apart), example)


def packed_in(top: Location, split: Split | None) -> Iterator[tuple[str, str]]:
    """Give the parts of a folder that images are packed in, where parts have the same shares.

    Of a run that was interrupted, as it was before. What is damaged is not known.
    """
    splits = recorded_splits(top) if split else {}
    same = [part for part, known in splits.items() if split and known.parts == split.parts]
    notes = {part: manifest.load_unfinished(top / part) for part in same}
    for note in notes.values():
        if note and not note.append and not note.sync:  # it removes the shards that were there
            yield from ((part, image_id) for image_id, part in (note.groups or {}).items())
            return
    for part, note in notes.items():
        listed = note.base if note else manifest.load_manifest(top / part)
        known: Mapping[str, Sequence[str]] = {}
        if note and note.sync:
            listed, known = note.sync.manifest, note.sync.ids
        for ids in _ids(top / part, listed.shards if listed else [], known):
            check()
            yield from ((part, image_id) for image_id in ids)


def _ids(
    folder: Location, shards: Sequence[ShardEntry], known: Mapping[str, Sequence[str]]
) -> Iterable[Sequence[str]]:
    def read(entry: ShardEntry) -> Sequence[str]:
        with suppress(ShardwrightError):  # reported by what needs the shard
            return known.get(entry.path) or index.load(folder, entry.path).head.ids
        return []

    return place_at(folder).each(read, shards)
