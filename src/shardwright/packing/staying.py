"""Groups of copies that are packed already: each stays in its part, whatever a later list says.

Another list may name other images first, and a group would change its part by their hash: what was
trained on would become validation. Images that were packed in several parts before they were known
as copies go to the first of these, train before all others, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from shardwright.errors import ShardwrightError
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipes.split import Split
from shardwright.shards.format import index, manifest
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.parts import recorded_splits
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location


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
