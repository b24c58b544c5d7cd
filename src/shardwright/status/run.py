"""A look at a store: its records, its arrays, its shards to be, and what to do next."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from shardwright.buckets import Bucket, is_bucket
from shardwright.derive.books import FAILURES_NAME
from shardwright.errors import InputMissingError, ProvenanceError
from shardwright.files import explained
from shardwright.pack.plan import Plan, plan
from shardwright.pack.scan import Scan, scan
from shardwright.progress import Progress, quantity
from shardwright.schema import COMPONENTS, JSONL_NAME, STATE_FOLDER
from shardwright.shards.manifest import Settings
from shardwright.status.summary import BucketStatus, ComponentStatus, StoreStatus
from shardwright.store import facts, listing, npy, provenance, records
from shardwright.store.journal import journal_path
from shardwright.store.npy import BadArrayError
from shardwright.store.record_faults import is_stage1
from shardwright.store.records import BadRecordError
from shardwright.workers import run

_DEFAULT_DIR = "data/derived"
_DEFAULT_IMAGES = "data/approved"
_NOTE_EVERY = 100_000  # ready records between two lines of a log
_BATCH = 1000  # arrays a worker checks at a time
_SHARD_SIZE = 1000  # what pack takes by default, since every shard adds a few bytes


def look(derived: Path, jsonl: Path | None, workers: int, progress: Progress) -> StoreStatus:
    """Scan and check as packing would, then look at what it leaves out."""
    started = time.monotonic()
    metadata = jsonl or derived / JSONL_NAME
    if metadata.is_file():
        found = scan(metadata, derived, progress, _NOTE_EVERY)
    elif jsonl is None:  # nothing derived yet, or nothing merged
        found = Scan(metadata, derived, (0, 0))
    else:
        raise InputMissingError(f"{metadata}: no such file; give the store's metadata with --jsonl")
    layout = plan(
        found,
        Settings(buckets=[], shuffle=False, seed=None, limit=None, shard_size=_SHARD_SIZE),
        known=(),
        first_numbers={},
        workers=workers,
        progress=progress,
    )
    ready = {found.ids[sample] for sample in found.ready()}
    others, stage1 = _others(metadata, ready) if found.skipped else ({}, 0)
    states = [
        _component(row, derived, ready, others, workers, progress) for row in range(len(COMPONENTS))
    ]
    for sample in found.ready():
        for state, nbytes in zip(states, layout.checked.sizes(sample), strict=True):
            state.bytes += nbytes
    components = {row.name: state for row, state in zip(COMPONENTS, states, strict=True)}
    leftovers = listing.leftovers(derived)
    failures_file = derived / STATE_FOLDER / FAILURES_NAME
    failures = _lines(failures_file)
    known = facts.survey(derived, ready | others.keys())
    command, reason = _next(derived, jsonl, found, stage1, components, leftovers)
    if failures:
        reason += f"; but {quantity(failures, 'images')} could not be derived"
    return StoreStatus(
        derived_dir=str(derived),
        jsonl=str(metadata),
        total_records=found.total_records,
        ready_records=found.ready_records,
        skipped_incomplete=found.skipped.total,
        skipped_by_reason=dict(found.skipped),
        stage1_records=stage1,
        components=components,
        buckets=_buckets(layout, others),
        jsonl_bytes=found.jsonl_state[0],
        store_bytes=found.jsonl_state[0] + sum(state.bytes for state in states),
        shards=len(layout.shards),
        shard_bytes=layout.bytes,
        leftovers=[str(path) for path in leftovers],
        failures=failures,
        failures_file=str(failures_file) if failures else None,
        changed_images=known.changed,
        gone_images=known.gone,
        truncated=known.truncated,
        next_command=command,
        next_reason=reason,
        seconds=round(time.monotonic() - started, 3),
    )


def _others(jsonl: Path, ready: Container[str]) -> tuple[dict[str, str], int]:
    """Give the ids that are not ready, each with its bucket if it has one, and count Stage 1."""
    others: dict[str, str] = {}
    stage1 = 0
    with explained(jsonl), jsonl.open("rb", buffering=1 << 20) as file:
        for line in records.lines(file):
            try:
                record = records.parse(line.data)
            except BadRecordError:
                continue
            stage1 += is_stage1(record)
            image_id: Any = record.get("image_id")
            if records.image_id_problem(image_id) is None and image_id not in ready:
                bucket: Any = record.get("aspect_bucket")
                spelt = type(bucket) is str and is_bucket(bucket)
                others[image_id] = sys.intern(bucket) if spelt else ""
    return others, stage1


def _buckets(layout: Plan, others: dict[str, str]) -> dict[str, BucketStatus]:
    buckets: dict[str, BucketStatus] = {}
    for shard in layout.shards:
        bucket = buckets.setdefault(shard.bucket, BucketStatus())
        bucket.ready += len(shard.samples)
        bucket.shard_bytes += shard.bytes
    for name in others.values():
        if name:
            buckets.setdefault(name, BucketStatus()).not_ready += 1
    return {name: buckets[name] for name in sorted(buckets, key=Bucket.parse)}


def _component(
    row: int,
    derived: Path,
    ready: Collection[str],
    others: Collection[str],
    workers: int,
    progress: Progress,
) -> ComponentStatus:
    """Count a component's arrays, and the bytes of those that the plan has not seen."""
    folder = derived / COMPONENTS[row].folder
    state = ComponentStatus()
    there: list[str] = []  # arrays of images that are not ready, for lack of something else or not
    for name in listing.names(folder):
        image_id = listing.array_id(name)
        if image_id is None or image_id in ready:
            continue
        with suppress(OSError):  # a link to nowhere
            state.bytes += os.stat(folder / name).st_size
        if image_id in others:
            there.append(image_id)
        else:
            state.orphaned += 1
    progress.phase(COMPONENTS[row].name, len(there), "arrays")
    tasks = ((row, folder, there[first : first + _BATCH]) for first in range(0, len(there), _BATCH))
    sound = 0
    with closing(run(_count_sound, tasks, min(workers, len(there) // _BATCH + 1))) as counts:
        for looked_at, good in counts:
            sound += good
            progress.advance(looked_at)
    state.complete = len(ready) + sound
    state.missing = len(others) - len(there)
    state.invalid = len(there) - sound
    return state


def _count_sound(task: tuple[int, Path, list[str]]) -> Iterator[tuple[int, int]]:
    """Count the arrays of some ids, and those of them whose header and size are right."""
    row, folder, ids = task
    sound = 0
    for image_id in ids:
        with suppress(BadArrayError):
            fd = npy.open_array(folder / (image_id + listing.ARRAY_SUFFIX))
            try:
                npy.check(fd, COMPONENTS[row])
                sound += 1
            finally:
                os.close(fd)
    yield len(ids), sound


def _next(
    derived: Path,
    jsonl: Path | None,
    found: Scan,
    stage1: int,
    components: dict[str, ComponentStatus],
    leftovers: list[Path],
) -> tuple[str, str]:
    """Choose the command that brings the store forward, and say why."""
    where = [] if derived == Path(_DEFAULT_DIR) else ["--derived-dir", str(derived)]
    if jsonl is not None:
        where += ["--jsonl", str(jsonl)]
    missing = sum(state.missing for state in components.values())
    recomputed = provenance.under_way(derived)
    if stage1:
        words = ["migrate", *where]
        why = (  # only migrate can tell which it cannot take
            f"{quantity(stage1, 'records')} of Stage 1; what migrate cannot take, mend or delete "
            "its lines"
        )
    elif journal_path(found.jsonl) in leftovers:
        words, why = (
            [*_derive(derived, found.jsonl), *where],
            "an interrupted run left records to be merged",
        )
    elif not found.total_records:
        words, why = [*_derive(derived, found.jsonl), *where], "there is no record yet"
    elif missing:
        words, why = (
            [*_derive(derived, found.jsonl), *where],
            f"{quantity(missing, 'arrays')} missing",
        )
    elif recomputed:
        words = [*_derive(derived, found.jsonl), *where]
        why = f"a run that made {' and '.join(recomputed)} anew was interrupted"
    elif found.skipped:
        words = ["verify", str(derived)]
        wrong = quantity(found.skipped.total, "records")
        why = f"it names what is wrong with {wrong}, and the cure"
    else:
        words, why = ["pack", *where], "every record is ready"
    return shlex.join(["shardwright", *words]), why


def _derive(derived: Path, jsonl: Path) -> list[str]:
    """Spell derive as this store was made."""
    images = _images(jsonl)
    try:
        entries = provenance.read(derived)
    except ProvenanceError:  # derive will say what is wrong with it
        entries = {}
    given = [] if images == _DEFAULT_IMAGES else [images]
    return ["derive", *given, *provenance.flags(entries)]


def _images(jsonl: Path) -> str:
    """Name the folder that all images of the records are below, or a word in its place."""
    folders: set[str] = set()
    for path in (jsonl, journal_path(jsonl)):
        if path.is_file():
            with explained(path), path.open("rb", buffering=1 << 20) as file:
                for line in records.lines(file):
                    with suppress(BadRecordError):
                        image: Any = records.parse(line.data).get("image_path")
                        if isinstance(image, str):
                            folders.add(os.path.dirname(image))
    if not folders and os.path.isdir(_DEFAULT_IMAGES):
        return _DEFAULT_IMAGES
    with suppress(ValueError):  # there are none, or some are relative and some are not
        common = os.path.commonpath(folders)
        if os.path.isdir(common):
            return common
    return "IMAGES"


def _lines(path: Path) -> int:
    """Count the lines of a file that may not be there."""
    if not path.is_file():
        return 0
    with explained(path), path.open("rb") as file:
        return sum(1 for _ in file)
