"""Proof that a store is what it says: each record whole, each array as the recipe wants it.

First the records, in this process and in one pass; then their arrays, on all cores; then whatever
else lies in the folders. A few hundred bytes a record are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from shardwright.buckets import is_bucket
from shardwright.engine import Engine
from shardwright.progress import Progress, quantity
from shardwright.storage.files import explained
from shardwright.store import commands, facts, listing, provenance, record_faults, records
from shardwright.store.findings import Finding, VerifyReport
from shardwright.store.folders import require_merged
from shardwright.store.records import BadRecordError, Record
from shardwright.store.store import Store
from shardwright.verifying import array_faults
from shardwright.verifying.array_faults import ArraysToCheck, Checked, Picture

_BATCH = 256  # samples a worker checks at a time
_NOTE_EVERY = 100  # batches between two lines of a log


def verify_store(
    store: Store, *, read_data: bool, engine: Engine, progress: Progress
) -> VerifyReport:
    """Check every record and every array of a store."""
    started = time.monotonic()
    require_merged(store)
    samples, findings = _read_records(store, progress)
    rows, missing = _folders(store, samples)
    checked = _check_arrays(store, samples, rows, read_data, engine, progress)
    findings += _recomputed(store)
    findings += missing
    findings += [fault.finding(store) for fault in checked.faults]
    findings += _images(store, samples.ids, progress)
    findings += _notes(store, samples.ids)
    findings = commands.in_full(findings, store)
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
    """What the records speak of: each image_id, and in the same order each picture."""

    records: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)


def _read_records(store: Store, progress: Progress) -> tuple[_Samples, list[Finding]]:
    twins = record_faults.Twins()
    samples = _Samples(ids=twins.ids)
    pictures: dict[Picture, Picture] = {}  # one of each: there are fewer sizes than samples
    findings: list[Finding] = []
    jsonl, name = store.jsonl, str(store.jsonl)
    with explained(jsonl), jsonl.open("rb", buffering=1 << 20) as file:
        size = os.fstat(file.fileno()).st_size
        progress.phase("records", size, "B")
        for line in records.counted(records.lines(file), size, progress):
            samples.records += 1
            try:
                record = records.parse(line.data)
            except BadRecordError as error:
                # Only the last line of a file can lack its line end.
                torn = line.data is not None and line.offset + len(line.data) == size
                kind = "torn_line" if torn else error.reason
                findings.append(record_faults.finding(kind, name, line.number, store.recipe))
                continue
            findings += (
                record_faults.finding(kind, name, line.number, store.recipe)
                for kind in record_faults.faults(record, store.recipe)
            )
            image_id = record.get("image_id")
            if records.image_id_problem(image_id) is None:
                assert isinstance(image_id, str)
                if twin := twins.meet(image_id, record.get("image_path"), line.number):
                    kind, what, cure = twin
                    findings.append(Finding(kind, name, line.number, what, cure))
                if twins.ids[image_id] == line.number:
                    picture = _picture(record)
                    samples.pictures.append(pictures.setdefault(picture, picture))
    told = quantity(len(findings), "findings")
    progress.note(f"{quantity(samples.records, 'records')}, {told}")
    return samples, findings


def _picture(record: Record) -> Picture:
    width: Any = record.get("width")
    height: Any = record.get("height")
    bucket = record.get("aspect_bucket")
    if type(bucket) is not str or not is_bucket(bucket):
        bucket = ""
    if not record_faults.is_side(width) or not record_faults.is_side(height):
        width = height = 0
    return Picture(width, height, bucket)


def _check_arrays(
    store: Store,
    samples: _Samples,
    rows: tuple[int, ...],
    read_data: bool,
    engine: Engine,
    progress: Progress,
) -> Checked:
    total = len(samples.ids)
    progress.phase("arrays", total, "samples")
    ids = iter(samples.ids)
    tasks = (
        ArraysToCheck(
            store,
            rows,
            read_data,
            first,
            list(islice(ids, _BATCH)),
            samples.pictures[first : first + _BATCH],
        )
        for first in range(0, total, _BATCH)
    )
    checked = Checked()
    with closing(engine.run(array_faults.check, tasks)) as batches:
        for number, batch in enumerate(batches, 1):
            checked.add(batch)
            progress.advance(batch.samples)
            if number % _NOTE_EVERY == 0 or checked.samples == total:
                faults = quantity(len(checked.faults), "arrays")
                progress.note(f"{checked.samples}/{quantity(total, 'samples')}, {faults} at fault")
    checked.faults.sort()  # so that the report is the same for any workers
    return checked


def _folders(store: Store, samples: _Samples) -> tuple[tuple[int, ...], list[Finding]]:
    """Give the components that have a folder; one that has none is said once, not per record."""
    rows, missing = [], []
    for row, component in enumerate(store.recipe.components):
        folder = store.arrays(component)
        if folder.is_dir():
            rows.append(row)
        elif samples.ids:
            kind, what = f"{component.name}_folder_missing", "not there, but every record needs it"
            missing.append(Finding(kind, str(folder), None, what, "run shardwright derive"))
    return tuple(rows), missing


def _recomputed(store: Store) -> Iterator[Finding]:
    """Find what is being recomputed: sound as it looks, an array may be another caption's."""
    for name in provenance.under_way(store.folder):
        yield Finding(
            "recompute_unfinished",
            str(store.state / provenance.NAME),
            None,
            f"a recompute of {name} has not ended, so its arrays may not be those of their records",
            "to finish it, run shardwright derive",
        )


def _images(store: Store, ids: Collection[str], progress: Progress) -> Iterator[Finding]:
    """Find images that are not there as they were encoded: the store is still what it was."""
    known = facts.survey(store, ids, progress)
    for path in known.changed:
        what = "changed since it was encoded; its arrays show the old picture"
        fix = "put the old picture back, or derive with --recompute"
        yield Finding("image_changed", path, None, what, fix, damage=False)
    if known.gone and len(known.gone) == known.known:  # so the store has been taken elsewhere
        what = f"all {quantity(len(known.gone), 'images')} it was made from are gone from here"
        fix = "nothing, if the images are kept elsewhere"
        yield Finding("images_gone", str(store.folder), None, what, fix, damage=False)
    else:
        for path in known.gone:
            what = "gone since it was encoded; its record and arrays are there"
            fix = "put it back, or remove its record and arrays"
            yield Finding("image_gone", path, None, what, fix, damage=False)


def _notes(store: Store, ids: Container[str]) -> Iterator[Finding]:
    """Find what belongs to no record: nothing is lost by it, but somebody may wonder."""
    for path in listing.leftovers(store):
        if path == store.journal:
            kind, what = "journal", "records that an interrupted run left to be merged"
            cure = "to merge them, run shardwright derive"
        else:
            kind, what = "leftover", "left half written by an interrupted run"
            cure = "delete it when no run is under way"
        yield Finding(kind, str(path), None, what, cure, damage=False)
    for component in store.recipe.components:
        folder = store.arrays(component)
        orphans = [
            name
            for name in listing.names(folder)
            if (image_id := listing.array_id(name)) is not None and image_id not in ids
        ]
        for name in sorted(orphans):
            yield Finding(
                f"{component.name}_orphaned",
                str(folder / name),
                None,
                "no record speaks of it",
                "delete it, or to give its image a record run shardwright derive",
                damage=False,
            )
