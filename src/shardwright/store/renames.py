"""Renames and removes images in a store: their arrays, records and facts.

All of it is one list of steps. A new id may still be that of another image, so each array gets its
new name with the suffix of a temporary file first, as a second name beside the old one. The next
generation, if there is one, changes together with the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from shardwright.errors import UsageError
from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME
from shardwright.progress import quantity
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.storage.paths import absolute
from shardwright.storage.steps import Steps
from shardwright.store import facts, records
from shardwright.store.facts import Facts
from shardwright.store.journal import Rewrite
from shardwright.store.records import BadRecordError, Record
from shardwright.store.store import Store, read_recipe, recorded


class Name(msgspec.Struct, frozen=True):
    """What an image is called: the id, and the path as in its record."""

    image_id: str
    path: str


@dataclasses.dataclass(frozen=True)
class Renames:
    """What is renamed, by old id, and removed."""

    renamed: Mapping[str, Name]
    removed: Collection[str]
    ids: str | None = None  # how the images get their ids from now on

    def apply(self, store: Store) -> None:
        """Rename and remove images; the caller holds the lock."""
        # As it is on the disk: the recipe that is wanted may be another one.
        used = dataclasses.replace(store, recipe=recorded(store.folder) or store.recipe)
        begun = read_recipe(store.next.folder)
        with Steps(store.folder, str(self)) as steps:
            self._stage(used, steps, add=_first_facts)
            if begun is not None:
                self._stage(dataclasses.replace(store.next, recipe=begun), steps)

    def __str__(self) -> str:
        renamed, removed = len(self.renamed), len(self.removed)
        parts = [f"renaming of {quantity(renamed, 'images')}"] * bool(renamed)
        parts += [f"removal of {quantity(removed, 'images')}"] * bool(removed)
        return " and ".join(parts) or "change of image ids"

    def _stage(
        self, store: Store, steps: Steps, add: Callable[[str, Name], bytes] | None = None
    ) -> None:
        for component in store.recipe.components:
            if store.arrays(component).is_dir():
                self._stage_arrays(store, component, steps)
        self._stage_lines(store.jsonl, steps, _renamed_record)
        self._stage_lines(facts.path_of(store), steps, _renamed_facts, add)
        if self.ids is not None:
            recipe = dataclasses.replace(store.recipe, ids=self.ids)
            always = read_recipe(store.folder) is not None
            dataclasses.replace(store, recipe=recipe).record(steps, always=always)

    def _stage_arrays(self, store: Store, component: Component, steps: Steps) -> None:
        given = set()  # the names that arrays get
        others = {old: name.image_id for old, name in self.renamed.items() if old != name.image_id}
        for old, new in others.items():
            check()
            array, target = store.array(component, old), store.array(component, new)
            if array.exists():
                tmp = target.with_name(target.name + files.TMP_SUFFIX)
                files.remove(tmp)
                files.keep(array, tmp)
                steps.rename(tmp, target)
                given.add(new)
        for old in (*others, *self.removed):
            check()
            if old not in given:
                array = store.array(component, old)
                steps.remove(array)
                steps.remove(array.with_name(array.name + files.TMP_SUFFIX))

    def _stage_lines(
        self,
        jsonl: Path,
        steps: Steps,
        change: Callable[[bytes, str, Name], bytes],
        add: Callable[[str, Name], bytes] | None = None,
    ) -> None:
        """Change the lines of renamed images, and drop those of removed ones.

        ``add`` makes the line of a renamed image that has none.
        """
        removed, without = set(self.removed), dict(self.renamed)
        with Rewrite(jsonl) as rewrite:
            for line in rewrite.lines():
                with suppress(BadRecordError):  # whatever it is, it stays
                    image_id = records.names(line.data).image_id
                    assert line.data is not None
                    if not isinstance(image_id, str):
                        continue
                    without.pop(image_id, None)
                    if image_id in removed:
                        rewrite.drop(line)
                    elif name := self.renamed.get(image_id):
                        end = line.offset + len(line.data)
                        rewrite.replace(line.offset, end, change(line.data, image_id, name))
            if add is not None:
                for old, name in without.items():
                    rewrite.add(add(old, name))
            if rewrite.changed:
                rewrite.publish(steps)


def require_only(store: Store) -> None:
    """Raise if the store has records in another JSONL too, which would lose their arrays."""
    own = store.folder / JSONL_NAME
    if own.exists() and not (store.jsonl.exists() and store.jsonl.samefile(own)):
        what = f"has records too, whose images {store.jsonl.name} would rename or remove"
        raise UsageError(what, path=own, fix="leave out --jsonl, or move this file away")


def _first_facts(old: str, name: Name) -> bytes:
    return msgspec.json.encode(Facts(name.image_id, first_id=old))


def _renamed_record(line: bytes, old: str, name: Name) -> bytes:
    record: Record = records.parse(line)
    record["image_id"] = name.image_id
    if "image_path" in record:
        record["image_path"] = name.path
    return records.line(record)


def _renamed_facts(line: bytes, old: str, name: Name) -> bytes:
    known = facts.parse(line)
    image = known.image and msgspec.structs.replace(known.image, path=absolute(name.path))
    first = known.first_id or (old if old != name.image_id else None)
    known = msgspec.structs.replace(known, image_id=name.image_id, image=image, first_id=first)
    return msgspec.json.encode(known)
