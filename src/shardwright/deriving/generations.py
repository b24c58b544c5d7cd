"""Recomputed components: a new generation beside the arrays in use, which replaces them at the end.

A run that recomputes writes everything to ``DERIVED_DIR/.shardwright/next``, which is laid out like
a store; a record there comes after its arrays. Until all is made the store does not change. Then
arrays, records, facts, recipe and provenance change together, in steps.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from shardwright.errors import DamageError, ProvenanceError, StorageError
from shardwright.progress import quantity
from shardwright.recipes import Component
from shardwright.recipes.compare import bucket_changes, changes
from shardwright.storage import files
from shardwright.storage.steps import Steps
from shardwright.store import facts, journal, provenance, records
from shardwright.store.facts import ImageFile
from shardwright.store.journal import Journal
from shardwright.store.provenance import Entry
from shardwright.store.records import CROP, BadRecordError, Record
from shardwright.store.store import Store, read_recipe


class Generation:
    """New arrays of some components; of those in ``kept``, old arrays without a new one stay."""

    def __init__(
        self, store: Store, entries: Mapping[Component, Entry], kept: Collection[Component]
    ) -> None:
        self.used, self.store = store, store.next
        self.entries, self.kept = entries, kept
        self.records, self.facts = Journal(self.store.jsonl), Journal(facts.path_of(self.store))
        self._require_same(provenance.read(self.store.folder))

    @property
    def is_update(self) -> bool:
        """Whether it is of what changed, and not of all arrays."""
        return provenance.is_update({c.name: entry for c, entry in self.entries.items()})

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open it for writing; the caller holds the lock of the store."""
        provenance.write(self.store.folder, {c.name: entry for c, entry in self.entries.items()})
        self.store.make_folders()
        self.store.sync()
        self.store.record(always=True)
        with self.records, self.facts:
            yield

    def missing(self) -> dict[Component, list[str]]:
        """Name the images whose arrays the swap would delete."""
        made = {record["image_id"] for record in made_in(self.store)}
        lost = [component for component in self.entries if component not in self.kept]
        return {c: [i for i in self.used.array_ids(c) if i not in made] for c in lost}

    def require_given(self, image_ids: Collection[str]) -> None:
        """Raise if arrays cannot be recomputed because their images are not given."""
        for component, missing in self.missing().items():
            if absent := [image_id for image_id in missing if image_id not in image_ids]:
                count = quantity(len(absent), f"{component.name} arrays")
                raise ProvenanceError(
                    f"its image is not in the folder given; {count} cannot be recomputed",
                    path=self.used.array(component, absent[0]),
                    fix="give the folder of all images, or add --drop-failed to delete these "
                    "arrays",
                )

    def swap(self) -> None:
        """Put the new arrays in use, and remove the old ones of images that are ``missing``."""
        new, used = self.store, self.used
        entries = {c.name: replace(e, update=False) for c, e in self.entries.items()}
        made = dict.fromkeys(record["image_id"] for record in made_in(new))
        with Steps(used.folder, name_of({c.name: e for c, e in self.entries.items()})) as steps:
            for component, missing in self.missing().items():
                for image_id in missing:
                    steps.remove(used.array(component, image_id))
            journal.apply(new.jsonl, used.jsonl, made, partial(_combined, new), steps)
            journal.apply(facts.path_of(new), facts.path_of(used), made, steps=steps)
            before = provenance.read(used.folder)
            provenance.write(used.folder, provenance.joined(before, entries), steps)
            used.record(steps)
            for component in used.recipe.components:
                names = {image_id + component.extension for image_id in made}
                for path in new.arrays(component).glob("*"):  # of records that were not written
                    if path.name not in names:
                        files.remove(path)
                for path in used.arrays(component).glob(f"*{files.TMP_SUFFIX}"):
                    files.remove(path)
                steps.rename_all(new.arrays(component), used.arrays(component))
            steps.rename_all(new.empties, used.empties)
            steps.remove_all(new.folder)

    def _recipe_changes(self) -> list[str]:
        """List what is different in the recipe since this recompute was begun."""
        if (begun := read_recipe(self.store.folder)) is None:
            return []
        known = [component for component in self.entries if component.name in begun.by_name]
        found = [f"{c.name}: {what}" for c in known for what in changes(begun.by_name[c.name], c)]
        if any(component.source == "image" for component in self.entries):
            found += bucket_changes(begun, self.store.recipe)
        return found

    def _require_same(self, begun: Mapping[str, Entry]) -> None:
        """Raise if another recompute is unfinished, or if this one cannot be swapped in."""
        before = {name: entry.settings for name, entry in begun.items()}
        now = {component.name: entry.settings for component, entry in self.entries.items()}
        changed, listed = provenance.differences(before, now)
        recipe = self._recipe_changes()
        listed = "; ".join(filter(None, (listed, *recipe)))
        # An update may be of more components than when it was begun.
        another = self.is_update != provenance.is_update(begun) or (
            not self.is_update and begun.keys() != now.keys()
        )
        if changed or recipe or (begun and another):
            flags = provenance.flags_before(begun, changed) if changed else ""
            other = f", with other settings ({listed})" * bool(listed)
            flag = "--update" if provenance.is_update(begun) else f"--recompute {','.join(begun)}"
            fix = f"to continue it, give {flag}{' and ' * bool(flags)}{flags}; "
            fix += "to discard it, --recompute none"
            what = f"the {name_of(begun)} is unfinished{other}"
            raise ProvenanceError(what, path=self.used.folder, fix=fix)
        for folder in map(self.used.arrays, self.entries):
            if folder.is_dir() and os.stat(folder).st_dev != os.stat(self.used.folder).st_dev:
                what = "is on another file system than the store, so its arrays cannot be replaced"
                fix = "delete it and run the same command again"
                raise StorageError(what, path=folder, fix=fix)


def made_in(new: Store) -> Iterator[Record]:
    """Read the records of the images that are recomputed; raise if one has no valid id."""
    for path in (new.jsonl, new.journal):
        for line, record in records.walk(path, records.parse):
            if (problem := records.image_id_problem(record.get("image_id"))) is not None:
                what = f"line {line.number} is not the record of an image ({problem})"
                raise DamageError(what, path=path, fix=f"delete {new.folder} and run it again")
            yield record


def arrays_in(new: Store) -> Iterator[tuple[Record, list[Component]]]:
    """Read the records of the images that are made, with the components of their new arrays."""
    for record in made_in(new):
        there = [c for c in new.recipe.components if new.array(c, record["image_id"]).exists()]
        yield record, there


def files_in(new: Store) -> dict[str, ImageFile | None]:
    """Give the files that new arrays were made from, by image id."""
    return {known.image_id: known.image for _, known in facts.read(new)}


def unfinished(store: Store) -> tuple[dict[str, Entry], int]:
    """Give what is recomputed but not in use yet, and the number of images so far."""
    new = store.next
    return provenance.readable(new.folder), len({r["image_id"] for r in made_in(new)})


def name_of(begun: Mapping[str, Entry]) -> str:
    """Say what an unfinished generation is."""
    return "update" if provenance.is_update(begun) else f"recompute of {','.join(begun)}"


def recover(store: Store) -> None:
    """Merge the journals of the next generation that a killed run has left."""
    for jsonl in (store.next.jsonl, facts.path_of(store.next)):
        journal.recover(jsonl)


def discard(store: Store) -> None:
    """Remove the next generation."""
    if store.next.folder.exists():
        with Steps(store.folder, "removal of an unfinished recompute") as steps:
            steps.remove_all(store.next.folder)


def _combined(new: Store, old: bytes | None, line: bytes) -> bytes | None:
    """Update the fields of a record that describe its new arrays, and keep the others."""
    record = records.parse(line)
    try:
        used = records.parse(old)
    except BadRecordError:  # or there is none
        return line if all(field in record for field in new.recipe.record_fields) else None
    made = [c for c in new.recipe.components if new.array(c, record["image_id"]).exists()]
    # A record in a generation has only those of the user's columns that were given to its run.
    fields = {field for component in made for field in _fields(component)}
    fields |= record.keys() - records.own_fields(new.recipe)
    both = {name: value for name, value in used.items() if name not in fields}
    both |= {name: value for name, value in record.items() if name in fields and value is not None}
    return records.line(records.ordered(both, new.recipe)) if both != used else None


def _fields(component: Component) -> list[str]:
    """Name the fields of a record that describe an array."""
    if component.source == "caption":
        return [component.field, *([component.mask.field] if component.mask else [])]
    return ["height", "width", "aspect_bucket", *([CROP] if component.follows_picture else [])]
