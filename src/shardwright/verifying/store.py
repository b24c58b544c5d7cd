"""Checks a store: that each record is valid and each array matches the recipe.

First the records, in this process and in one pass; then their arrays, on all cores; then the other
files of the folder. A few hundred bytes per record are kept in memory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Container, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.buckets import Bucket, is_bucket
from shardwright.engine import Engine
from shardwright.errors import DamageError
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.shards.format.empty import empty_faults, empty_members
from shardwright.storage.files import read_existing
from shardwright.store import (
    facts,
    faults,
    records,
)
from shardwright.store.commands import Commands
from shardwright.store.faults import ArrayCounts, Expected
from shardwright.store.findings import Finding, VerifyReport
from shardwright.store.records import Line, Record
from shardwright.store.store import IDENTITY, Store, read_identity

_NOTE_EVERY = 100  # batches between two lines of a log


def verify_store(store: Store, report: VerifyReport, engine: Engine, progress: Progress) -> None:
    """Check every record and every array of a store."""
    store.require_merged()
    run, findings, read_data = Commands(store), report.findings, report.read_data
    samples = _read_records(store, run, findings, progress)
    components = store.recipe.components
    rows = [row for row, component in enumerate(components) if store.arrays(component).is_dir()]
    checked = _check_arrays(store, samples, rows, read_data, engine, progress)
    report.checked = {"records": samples.records, "arrays": checked.arrays}
    report.bytes = checked.bytes
    try:
        read_identity(store)
    except DamageError as error:
        path, fix = store.state / IDENTITY, error.fix or ""
        findings.append(Finding("identity_damaged", str(path), None, error.what, fix))
    for row, component in enumerate(components):
        if samples.ids and row not in rows:  # one finding, not one per record
            kind, what = f"{component.name}_folder_missing", "is missing, but every record needs it"
            path, fix = store.arrays(component), f"run {run.derive}"
            findings.append(Finding(kind, str(path), None, what, fix))
    for fault in sorted(checked.faults):  # so that the report is the same for any workers
        component = components[fault.component]
        kind, path = f"{component.name}_{fault.name}", store.array(component, fault.image_id)
        findings.append(Finding(kind, str(path), None, *fault.words(store, run)))
    findings += _empties(store, run, read_data)
    findings += _images(store, samples.ids, run, progress)
    findings += _warnings(store, samples.ids, run)


@dataclass
class _Samples:
    """The samples of the records: each image_id with its first line, and what they say."""

    records: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    expected: list[Expected] = field(default_factory=list)


def _read_records(
    store: Store, run: Commands, findings: list[Finding], progress: Progress
) -> _Samples:
    samples = _Samples()
    twins = _Twins(samples.ids)
    known: dict[Expected, Expected] = {}  # one of each: there are fewer than samples
    valid, jsonl = faults.Rules(store.recipe), store.jsonl

    def add(fault: str, line: Line) -> None:
        what, fix = faults.words(fault, store.recipe, run)
        findings.append(Finding(fault, str(jsonl), line.number, what, fix))

    def bad(line: Line, reason: str) -> None:
        samples.records += 1
        # Only the last line of a file can be without a line end.
        end = None if line.data is None else line.offset + len(line.data)
        add("torn_line" if end == jsonl.stat().st_size else reason, line)

    for line, record in records.walk(jsonl, records.parse, bad=bad, progress=progress):
        samples.records += 1
        for fault in valid.faults(record):
            add(fault, line)
        image_id = record.get("image_id")
        if records.is_image_id(image_id):
            if twin := twins.add(image_id, record.get("image_path"), line.number):
                kind, what, fix = twin
                findings.append(Finding(kind, str(jsonl), line.number, what, fix.format(run=run)))
            if samples.ids[image_id] == line.number:
                expected = _expected(record, store.recipe)
                samples.expected.append(known.setdefault(expected, expected))
    count = quantity(len(findings), "findings")
    progress.note(f"{quantity(samples.records, 'records')}, {count}")
    return samples


def _expected(record: Record, recipe: Recipe) -> Expected:
    """Give what decides the shapes of a record's arrays: its picture, its bucket, its masks."""
    sizes = []
    width, height, bucket = (record.get(name) for name in ("width", "height", "aspect_bucket"))
    if faults.is_side(width) and faults.is_side(height):
        sizes.append((width, height))
    if type(bucket) is str and is_bucket(bucket):
        size = Bucket.parse(bucket)
        sizes.append((size.width, size.height))
    rows = tuple(
        (component.name, sum(record[component.mask.field]))
        for component in recipe.components
        if component.trim
        and component.mask
        and records.is_mask(record.get(component.mask.field), component.mask)
    )
    return Expected(tuple(sizes), rows)


class _Twins:
    """Finds records that share an image_id or an image."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids  # the first line of each id
        self._images: dict[object, int] = {}  # the first line of each image
        self._first: dict[str, int] = {}  # of an id's image, if that line has another id

    def add(self, image_id: str, path: object, number: int) -> tuple[str, str, str] | None:
        """Add a record; if it is a twin, give the kind, what is wrong, and the fix."""
        # Without a path, the id stands for the image.
        image = posixpath.normpath(path) if path and isinstance(path, str) else (image_id,)
        image_line = self._images.setdefault(image, number)
        id_line = self._ids.setdefault(image_id, number)
        if id_line == number:
            if image_line == number:
                return None
            self._first[image_id] = image_line
            what = f"the same image as line {image_line}, under another image_id"
            return "duplicate_image", what, "delete one of the two lines and its arrays"
        if self._first.get(image_id, id_line) == image_line:
            what = f"the same image_id and image as line {id_line}"
            return "repeated_record", what, "delete one of the two lines; pack uses the later one"
        what = f"the same image_id as line {id_line}, for another image"
        fix = "rename one of the images, delete both lines and their arrays, and run {run.derive}"
        return "duplicate_id", what, fix


def _check_arrays(
    store: Store,
    samples: _Samples,
    rows: list[int],
    read_data: bool,
    engine: Engine,
    progress: Progress,
) -> ArrayCounts:
    total = len(samples.ids)
    progress.phase("arrays", total, "samples")
    seen = ArrayCounts()
    check = faults.check_all(
        store, tuple(rows), samples.ids, samples.expected, engine, read_data=read_data
    )
    with closing(check) as batches:
        for number, batch in enumerate(batches, 1):
            seen.add(batch)
            progress.advance(batch.samples)
            if number % _NOTE_EVERY == 0 or seen.samples == total:
                damaged = quantity(len(seen.faults), "damaged arrays")
                progress.note(f"{seen.samples}/{quantity(total, 'samples')}, {damaged}")
    return seen


def _warning(kind: str, path: Path | str, what: str, fix: str) -> Finding:
    return Finding(kind, str(path), None, what, fix, damage=False)


def _empties(store: Store, run: Commands, read_data: bool) -> Iterator[Finding]:
    """Check the arrays of the empty caption."""
    found = read_existing({suffix: store.empty(suffix) for suffix in empty_members(store.recipe)})
    for suffix, what in empty_faults(found, store.recipe, read_data=read_data):
        fix = f"delete it and run {run.derive}"
        yield Finding("empty_invalid", str(store.empty(suffix)), None, what, fix)


def _images(
    store: Store, ids: Collection[str], run: Commands, progress: Progress
) -> Iterator[Finding]:
    """Find images that changed or are gone since they were encoded; the store itself is valid."""
    known = facts.survey(store, ids, progress)
    for path in known.changed:
        what = "changed since it was encoded; its arrays show the old picture"
        fix = f"put the old picture back, or run {run.update}"
        yield _warning("image_changed", path, what, fix)
    if known.gone and len(known.gone) == known.known:  # so the store was moved to another machine
        what = f"none of its {quantity(len(known.gone), 'images')} are here any more"
        fix = "nothing to do if the images are kept elsewhere"
        yield _warning("images_gone", store.folder, what, fix)
        return
    for path in known.gone:
        what = "gone since it was encoded; its record and arrays are still there"
        yield _warning("image_gone", path, what, f"put it back, or run {run.derive} --prune")


def _warnings(store: Store, ids: Container[str], run: Commands) -> Iterator[Finding]:
    """Find files that belong to no record; nothing is lost, but they may surprise somebody."""
    for path in store.leftovers():
        if path == store.journal:
            what = "has records of an interrupted run that are not merged"
            yield _warning("journal", path, what, f"to merge them, run {run.derive}")
        else:
            what = "partly written by an interrupted run"
            yield _warning("leftover", path, what, "delete it when no run is active")
    for component in store.recipe.components:
        kind, what = f"{component.name}_orphaned", "no record uses it"
        found = store.array_ids(component)
        for image_id in sorted(image_id for image_id in found if image_id not in ids):
            fix = f"delete it, or run {run.derive} to give its image a record"
            yield _warning(kind, store.array(component, image_id), what, fix)
