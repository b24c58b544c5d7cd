"""Proof that a store is what it says: each record valid, each array as the recipe wants it.

First the records, in this process and in one pass; then their arrays, on all cores; then whatever
else lies in the folders. A few hundred bytes a record are kept.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.buckets import Bucket, is_bucket
from shardwright.engine import Engine
from shardwright.progress import Progress, quantity
from shardwright.store import array_faults, facts, folders, provenance, records, rules
from shardwright.store.array_faults import ArrayCounts, Sizes
from shardwright.store.commands import Commands
from shardwright.store.findings import Finding, VerifyReport
from shardwright.store.records import Line, Record
from shardwright.store.store import Store

_NOTE_EVERY = 100  # batches between two lines of a log


def verify_store(
    store: Store, *, read_data: bool, engine: Engine, progress: Progress
) -> VerifyReport:
    """Check every record and every array of a store."""
    started = time.monotonic()
    folders.require_merged(store)
    run = Commands(store)
    try:
        samples, findings = _read_records(store, run, progress)
        rows, missing = _folders(store, samples, run)
        checked = _check_arrays(store, samples, rows, read_data, engine, progress)
        findings += _recomputed(store, run)
        findings += missing
        for fault in sorted(checked.faults):  # so that the report is the same for any workers
            component = store.recipe.components[fault.component]
            path = store.array(component, fault.image_id)
            findings.append(
                Finding(f"{component.name}_{fault.name}", str(path), None, *fault.words(store, run))
            )
        findings += _images(store, samples.ids, progress)
        findings += _notes(store, samples.ids, run)
    finally:
        progress.close()
    return VerifyReport(
        path=str(store.folder),
        read_data=read_data,
        checked={"records": samples.records, "arrays": checked.arrays},
        bytes=checked.bytes,
        findings=findings,
        seconds=round(time.monotonic() - started, 3),
    )


@dataclass
class _Samples:
    """What the records speak of: each image_id with its first line, and its sizes in that order."""

    records: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    sizes: list[Sizes] = field(default_factory=list)


def _read_records(
    store: Store, run: Commands, progress: Progress
) -> tuple[_Samples, list[Finding]]:
    samples = _Samples()
    twins = _Twins(samples.ids)
    known: dict[Sizes, Sizes] = {}  # one of each: there are fewer sizes than samples
    findings: list[Finding] = []
    valid, jsonl = rules.Rules(store.recipe), store.jsonl

    def note(fault: str, line: Line) -> None:
        what, fix = rules.words(fault, store.recipe, run)
        findings.append(Finding(fault, str(jsonl), line.number, what, fix))

    def no_record(line: Line, reason: str) -> None:
        samples.records += 1
        # Only the last line of a file can lack its line end.
        end = None if line.data is None else line.offset + len(line.data)
        note("torn_line" if end == jsonl.stat().st_size else reason, line)

    for line, record in records.walk(jsonl, records.parse, bad=no_record, progress=progress):
        samples.records += 1
        for fault in valid.faults(record):
            note(fault, line)
        image_id = record.get("image_id")
        if records.is_image_id(image_id):
            if twin := twins.meet(image_id, record.get("image_path"), line.number):
                kind, what, fix = twin
                findings.append(Finding(kind, str(jsonl), line.number, what, fix.format(run=run)))
            if samples.ids[image_id] == line.number:
                sizes = _sizes(record)
                samples.sizes.append(known.setdefault(sizes, sizes))
    told = quantity(len(findings), "findings")
    progress.note(f"{quantity(samples.records, 'records')}, {told}")
    return samples, findings


def _sizes(record: Record) -> Sizes:
    """Give the sizes that decide the shapes of a record's arrays: its picture's, its bucket's."""
    sizes = []
    width, height, bucket = (record.get(name) for name in ("width", "height", "aspect_bucket"))
    if rules.is_side(width) and rules.is_side(height):
        sizes.append((width, height))
    if type(bucket) is str and is_bucket(bucket):
        size = Bucket.parse(bucket)
        sizes.append((size.width, size.height))
    return tuple(sizes)


class _Twins:
    """Finds records that share an image_id or an image."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids  # the first line of each id
        self._images: dict[object, int] = {}  # the first line of each image
        self._first: dict[str, int] = {}  # of an id's image, where that line has another id

    def meet(self, image_id: str, path: object, number: int) -> tuple[str, str, str] | None:
        """Note a record; if it is a twin, give the kind, what is wrong, and the fix."""
        # Without a path, an image is known by its id.
        image = posixpath.normpath(path) if path and isinstance(path, str) else (image_id,)
        image_line = self._images.setdefault(image, number)
        id_line = self._ids.setdefault(image_id, number)
        if id_line == number:
            if image_line == number:
                return None
            self._first[image_id] = image_line
            return (
                "duplicate_image",
                f"the same image as line {image_line}, under another image_id",
                "delete one of the two lines and its arrays",
            )
        if self._first.get(image_id, id_line) == image_line:
            return (
                "repeated_record",
                f"the same image_id and image as line {id_line}",
                "delete one of the two lines; pack takes the later",
            )
        return (
            "duplicate_id",
            f"the same image_id as line {id_line}, for another image",
            "rename one of the images, delete both lines and their arrays, and run {run.derive}",
        )


def _check_arrays(
    store: Store,
    samples: _Samples,
    rows: tuple[int, ...],
    read_data: bool,
    engine: Engine,
    progress: Progress,
) -> ArrayCounts:
    total = len(samples.ids)
    progress.phase("arrays", total, "samples")
    seen = ArrayCounts()
    with closing(
        array_faults.check_all(store, rows, samples.ids, samples.sizes, engine, read_data=read_data)
    ) as batches:
        for number, batch in enumerate(batches, 1):
            seen.add(batch)
            progress.advance(batch.samples)
            if number % _NOTE_EVERY == 0 or seen.samples == total:
                faults = quantity(len(seen.faults), "arrays")
                progress.note(f"{seen.samples}/{quantity(total, 'samples')}, {faults} at fault")
    return seen


def _folders(
    store: Store, samples: _Samples, run: Commands
) -> tuple[tuple[int, ...], list[Finding]]:
    """Give the components that have a folder; one that has none is said once, not per record."""
    rows, missing = [], []
    for row, component in enumerate(store.recipe.components):
        folder = store.arrays(component)
        if folder.is_dir():
            rows.append(row)
        elif samples.ids:
            kind, what = f"{component.name}_folder_missing", "not there, but every record needs it"
            missing.append(Finding(kind, str(folder), None, what, f"run {run.derive}"))
    return tuple(rows), missing


def _recomputed(store: Store, run: Commands) -> Iterator[Finding]:
    """Find what is being recomputed: valid as it looks, an array may be another caption's."""
    for name in provenance.under_way(store.folder):
        what = (
            f"a recompute of {name} has not ended, so its arrays may not be those of their records"
        )
        path, fix = store.state / provenance.NAME, f"to finish it, run {run.derive}"
        yield Finding("recompute_unfinished", str(path), None, what, fix)


def _note(kind: str, path: Path | str, what: str, fix: str) -> Finding:
    return Finding(kind, str(path), None, what, fix, damage=False)


def _images(store: Store, ids: Collection[str], progress: Progress) -> Iterator[Finding]:
    """Find images that are not there as they were encoded: the store is still what it was."""
    known = facts.survey(store, ids, progress)
    for path in known.changed:
        what = "changed since it was encoded; its arrays show the old picture"
        yield _note(
            "image_changed", path, what, "put the old picture back, or derive with --recompute"
        )
    if known.gone and len(known.gone) == known.known:  # so the store has been taken elsewhere
        what = f"all {quantity(len(known.gone), 'images')} it was made from are gone from here"
        yield _note("images_gone", store.folder, what, "nothing, if the images are kept elsewhere")
        return
    for path in known.gone:
        what = "gone since it was encoded; its record and arrays are there"
        yield _note("image_gone", path, what, "put it back, or remove its record and arrays")


def _notes(store: Store, ids: Container[str], run: Commands) -> Iterator[Finding]:
    """Find what belongs to no record: nothing is lost by it, but somebody may wonder."""
    for path in folders.leftovers(store):
        if path == store.journal:
            what = "records that an interrupted run left to be merged"
            yield _note("journal", path, what, f"to merge them, run {run.derive}")
        else:
            what = "left half written by an interrupted run"
            yield _note("leftover", path, what, "delete it when no run is under way")
    for component in store.recipe.components:
        kind, what = f"{component.name}_orphaned", "no record speaks of it"
        found = folders.array_ids(store, component)
        for image_id in sorted(image_id for image_id in found if image_id not in ids):
            fix = f"delete it, or to give its image a record run {run.derive}"
            yield _note(kind, store.array(component, image_id), what, fix)
