"""The split of a run: the shard folder of each part, and the groups that stay in one part.

Groups of copies are named by a file: ``--split-by copies.jsonl``, as ``look`` writes it. Those that
are packed already stay in their part, whatever a later list says. It may name other images first,
and a group would change its part by their hash: what was trained on would become validation. Images
that were packed in several parts before they were known as copies go to the first of these, train
before all others, for the same reason.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from shardwright import regular
from shardwright.errors import DamageError, InputMissingError, ShardwrightError, UsageError
from shardwright.interrupts import check
from shardwright.packing.start import Target, current_run, existing
from shardwright.progress import Progress
from shardwright.recipes.split import Split
from shardwright.shards.format import index, manifest, parts
from shardwright.shards.format.again import complete, with_layout
from shardwright.shards.format.manifest import PackSettings, Run, ShardEntry, Unfinished
from shardwright.shards.format.names import existing_buckets
from shardwright.storage.files import absence, explained
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined
from shardwright.store import records
from shardwright.store.commands import command, quoted, split_flags

_FLAG = "--split-by"
_FIX = "give a list that shardwright look --duplicates wrote"


def find_targets(
    output: Location, settings: PackSettings, way: str | None, given: Collection[str] | None = None
) -> tuple[Split | None, list[Target]]:
    """Find the folders to pack into, by the split that is asked for or was recorded before.

    Of the flags that are ``given``, if that is known, a split of None drops the one before; without
    one, that of the recipe is for a folder without shards. Raise if samples would move from one
    part to another.
    """
    flag = None if given is None else "split" in given
    own = None
    with suppress(DamageError):  # reported when the run starts; --overwrite is the way out
        own = parts.last_settings(output)
    part, recorded = (own.part, own.split) if own else _named_beside(output)
    if part is not None and recorded is not None:
        top = output.absolute().parent
        _require_same(output, None if flag is False else settings.split, recorded, top, way)
        return recorded, [Target(output, part)]
    going = [Target(folder, folder.name) for folder in parts.dropped_parts(output)]
    if own is not None or existing(output, existing_buckets(output)):
        if settings.split is not None:
            what = "holds shards that are not split, so nothing was written"
            fix = "give another --output-dir, or remove these shards"
            raise UsageError(what, path=output, fix=fix)
        return None, [*going, Target(output)]
    before = parts.recorded_splits(output)
    if flag and settings.split is None and before:
        if way != "overwrite" or settings.buckets:
            what = f"is split into {', '.join(before)}, so nothing was written"
            way = overwriting(output, "--split", "none")
            fix = f"to drop the split, make all shards again with {way}"
            raise UsageError(what, path=output, fix=fix)
        # First the parts: as long as one of them is noted as dropped, it is known that they go.
        going += [Target(output / name, name) for name in before]
        return None, [*going, Target(output)]
    kept = next(iter(before.values()), None)
    split = (kept or settings.split) if flag is False else (settings.split or kept)
    if split is None:
        _require_readable(output)
        return None, [*going, Target(output)]
    if way != "overwrite" or settings.split is None or settings.buckets:
        for each in before.values():
            _require_same(output, split, each, output, way)
    # Also parts that are no more: their shards are removed, as their samples are in others now.
    names = dict.fromkeys((*split.names, *before))
    return split, [Target(output / name, name) for name in names]


def _named_beside(output: Location) -> tuple[str | None, Split | None]:
    """Find the part that a folder without a readable manifest is, if those beside it name it."""
    folder = output.absolute()
    for split in parts.recorded_splits(folder.parent).values():
        if folder.name in split.names:
            return folder.name, split
    return None, None


def _require_readable(output: Location) -> None:
    """Raise if a folder below may be a part whose split is unknown."""
    for folder in parts.packed_below(output):
        try:
            parts.last_settings(folder)
        except DamageError as error:
            fix = "give --overwrite and --split if it is a part of a split, or move it elsewhere"
            raise DamageError(error.what, path=error.path, fix=fix) from None


def _require_same(
    output: Location, split: Split | None, before: Split, top: Location, way: str | None
) -> None:
    if split is None or split == before:
        return
    # Groups stay where they are packed, so that a sync can follow another list of them.
    lists = split.parts == before.parts and split.has_groups and before.has_groups
    if lists and way == "sync":
        return
    was = " ".join(map(quoted, split_flags(before, top)))
    raise UsageError(
        f"was split with {was}, so nothing was written: another split would move samples "
        "between its parts",
        path=output,
        fix=f"give {'--sync to follow another list' if lists else was}, or make all shards again "
        f"with {overwriting(top)} and --split",
    )


def recorded(top: Location) -> tuple[Run | Unfinished, PackSettings] | None:
    """Give the last run into a folder or its parts, and the settings that pack all of it again."""
    folders = list(parts.parts_of(top).values()) or [top]
    if (last := current_run(folders)) is None:
        return None
    done = []
    for folder in folders:
        with suppress(DamageError):
            done.append(manifest.load_manifest(folder))
    return last, complete(last.settings, [found for found in done if found is not None])


def overwriting(top: Location, *flags: str) -> str:
    """Spell --overwrite for a folder, with flags, and with the layout that it does not keep."""
    found = recorded(top)
    return with_layout(" ".join(["--overwrite", *flags]), found[1] if found else None)


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

    path, data = _file(split, top) or (None, b"")
    for line in records.lines(io.BytesIO(data)):
        try:
            found = _decode(line.data or b"")
        except records.NOT_JSON:
            what = f"{_FLAG}: line {line.number} is not an object with an image_id and a kept one"
            raise UsageError(what, path=path, fix=_FIX) from None
        names = [*found.all_kept, found.kept, found.image_id]
        for name in names:
            order.setdefault(name, len(order))
            above.setdefault(name, name)
            one, other = sorted((first(names[0]), first(name)), key=order.__getitem__)
            above[other] = one
    return {name: first(name) for name in order}


def checksum(split: Split | None, top: Location) -> str | None:
    """Give the xxh3 of the file, if a split has one."""
    found = _file(split, top)
    return xxhash.xxh3_64_hexdigest(found[1]) if found else None


def _file(split: Split | None, top: Location) -> tuple[Path, bytes] | None:
    """Read the file, if a split has one; if it is gone, say how to go on without it."""
    if split is None or split.by is None or not split.has_groups:
        return None
    path, fix = joined(top, split.by), _FIX
    if path.is_file():
        with explained(path):
            return path, regular.read(path)
    if (last := current_run(parts.parts_of(top).values())) is not None:
        look = command("look", str(top), "--duplicates", str(path))
        other = "build --overwrite" if last.is_build else "pack --sync"
        fix = f"restore it, or write it again with {look}, or follow another list with {other} "
        fix += f"{_FLAG} FILE"
    raise InputMissingError(f"{_FLAG}: {absence(path)}", path=path, fix=fix)


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
    apart = [group for group, several in order.items() if len(several) > 1]
    example = ""
    if apart:
        one, other = (f"{found[apart[0]][part]} in {part}" for part in order[apart[0]][:2])
        example = f"for example {one} and {other}"
    return Staying({group: those[0] for group, those in order.items()}, len(apart), example)


def packed_in(top: Location, split: Split | None) -> Iterator[tuple[str, str]]:
    """Give the parts of a folder that images are packed in, where parts have the same shares.

    Of a run that was interrupted, as it was before. What is damaged is not known.
    """
    splits = parts.recorded_splits(top) if split else {}
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
