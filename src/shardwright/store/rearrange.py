"""Renames and removes images in a store: their arrays, records and facts.

``DERIVED_DIR/.shardwright/rearrange.json`` lists the steps before anything changes. Each step can
be repeated, because no new id in it is also an old one, so the next run finishes what was
interrupted. The next generation, if there is one, is rearranged too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from shardwright import regular
from shardwright.errors import DamageError, UsageError
from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME
from shardwright.recipes.keys import IDS
from shardwright.storage import files
from shardwright.storage.paths import absolute
from shardwright.storage.urls import is_within, joined
from shardwright.storage.within import is_below, require_names
from shardwright.store import facts, records
from shardwright.store.facts import Facts
from shardwright.store.records import BadRecordError, Record, is_image_id
from shardwright.store.rewrite import Rewrite
from shardwright.store.store import Store, read_recipe, recorded

NAME = "rearrange.json"
_BETWEEN = ".shardwright-{}"  # an id that no image has: hidden files are no images
_FIX = "restore it, or derive into another --derived-dir"


class Name(msgspec.Struct, frozen=True, array_like=True):
    """What an image is called: the id, and the path as in its record."""

    image_id: str
    path: str


class _Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is done at once."""

    renamed: dict[str, Name] = {}  # by old id
    removed: list[str] = []
    ids: str | None = None  # how the images get their ids from now on
    jsonl: str = JSONL_NAME  # that has the records, relative to the store


def note_of(store: Store) -> Path:
    """Name the file that lists what is under way."""
    return store.state / NAME


def is_under_way(store: Store) -> bool:
    """Whether a run was interrupted, so that arrays may not belong to their records."""
    return note_of(store).exists()


def require_only(store: Store) -> None:
    """Raise if the store has records in another JSONL too, which would lose their arrays."""
    own = store.folder / JSONL_NAME
    if own.exists() and not (store.jsonl.exists() and store.jsonl.samefile(own)):
        what = f"has records too, whose images {store.jsonl.name} would rename or remove"
        raise UsageError(what, path=own, fix="leave out --jsonl, or move this file away")


def apply(
    store: Store, renamed: Mapping[str, Name], removed: Collection[str], ids: str | None = None
) -> None:
    """Rename and remove images, by their ids; the caller holds the lock."""
    jsonl = os.path.relpath(store.jsonl, store.folder)
    steps = [_Step(removed=sorted(removed), jsonl=jsonl)] if removed else []
    # A new id may still be in use: such images get an id of their own in between.
    apart = {
        old: Name(_BETWEEN.format(number), name.path)
        for number, (old, name) in enumerate(renamed.items())
        if name.image_id in renamed and name.image_id != old
    }
    steps.append(_Step(renamed={**renamed, **apart}, ids=ids, jsonl=jsonl))
    if apart:
        back = {name.image_id: renamed[old] for old, name in apart.items()}
        steps.append(_Step(renamed=back, jsonl=jsonl))
    _write(store, steps)
    finish(store)


def finish(store: Store) -> tuple[int, int] | None:
    """Finish what is listed; give how many images were renamed and removed, if there was any."""
    path = note_of(store)
    if not path.exists():
        return None
    with files.explained(path):
        data = regular.read(path)
    steps = _read(data, store, path)
    counts = max(len(step.renamed) for step in steps), sum(len(step.removed) for step in steps)
    # As they are on the disk: the recipe that is wanted may be another one.
    used = dataclasses.replace(store, recipe=recorded(store.folder) or store.recipe)
    begun = read_recipe(store.next.folder)
    while steps:
        _rearrange(used.of(steps[0].jsonl), steps[0])
        _rewrite(facts.path_of(store), steps[0], _renamed_facts, add=_first_facts)
        if begun is not None:
            new = dataclasses.replace(store.next, recipe=begun)
            _rearrange(new, steps[0])
            _rewrite(facts.path_of(new), steps[0], _renamed_facts)
        steps = steps[1:]
        if steps:
            _write(store, steps)
    files.withdraw(path)
    return counts


def _read(data: bytes, store: Store, path: Path) -> list[_Step]:
    """Read the steps; raise if they would change files that are not of the store."""
    steps: list[_Step] = []
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        steps = msgspec.json.decode(data, type=list[_Step])
    if not steps or any(step.ids not in (None, *IDS) for step in steps):
        raise DamageError("is not a list of renamed images", path=path, fix=_FIX)
    for step in steps:
        new = (name.image_id for name in step.renamed.values())
        require_names((*step.removed, *step.renamed, *new), is_image_id, "an image_id", path, _FIX)

    def is_own(name: str) -> bool:
        """Whether it is in the store, or the one that the user gives; a link may lead elsewhere."""
        if "\0" in name:
            return False
        jsonl = joined(store.folder, name)
        inside = is_below(name) and is_within(jsonl, store.folder)
        return inside or jsonl.resolve() == store.jsonl.resolve()

    kind, fix = "in the store, nor given with --jsonl", "give the same --jsonl as before"
    require_names((step.jsonl for step in steps), is_own, kind, path, f"{fix}, or {_FIX}")
    return steps


def _write(store: Store, steps: list[_Step]) -> None:
    files.write(note_of(store), msgspec.json.encode(steps) + b"\n")


def _rearrange(store: Store, step: _Step) -> None:
    """Rename and remove arrays and records, and record how the images get their ids."""
    for component in store.recipe.components:
        if not store.arrays(component).is_dir():
            continue
        for old, name in step.renamed.items():
            check()
            array = store.array(component, old)
            if old != name.image_id and array.exists():
                files.move(array, store.array(component, name.image_id))
        for image_id in step.removed:
            check()
            array = store.array(component, image_id)
            for path in (array, array.with_name(array.name + files.TMP_SUFFIX)):
                files.remove(path)
        files.sync_folder(store.arrays(component))
    _rewrite(store.jsonl, step, _renamed_record)
    if step.ids is not None:
        recipe = dataclasses.replace(store.recipe, ids=step.ids)
        always = read_recipe(store.folder) is not None
        dataclasses.replace(store, recipe=recipe).record(always=always)


def _rewrite(
    jsonl: Path,
    step: _Step,
    change: Callable[[bytes, str, Name], bytes],
    add: Callable[[str, Name], bytes] | None = None,
) -> None:
    """Change the lines of renamed images, and drop those of removed ones.

    ``add`` makes the line of a renamed image that has none.
    """
    removed = set(step.removed)
    without = {name.image_id: old for old, name in step.renamed.items()}
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
                elif name := step.renamed.get(image_id):
                    without.pop(name.image_id, None)
                    end = line.offset + len(line.data)
                    rewrite.replace(line.offset, end, change(line.data, image_id, name))
        if add is not None:
            for old in without.values():
                rewrite.add(add(old, step.renamed[old]))
        if rewrite.changed:
            rewrite.publish()


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
