"""A look at a store: its records, its arrays, its shards to be, and what to do next."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from shardwright.buckets import Bucket, is_bucket
from shardwright.deriving.outcomes import FAILURES_NAME, read_failures
from shardwright.engine import Engine
from shardwright.errors import InputMissingError
from shardwright.interrupts import check
from shardwright.layout import JSONL_NAME
from shardwright.packing.plan import Plan, plan
from shardwright.packing.scan import Scan, scan
from shardwright.progress import Progress, quantity
from shardwright.recipe import Component
from shardwright.reporting.packed import Packed
from shardwright.reporting.summary import BucketStatus, ComponentStatus, StoreStatus
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage.files import explained
from shardwright.store import commands, facts, listing, npy, provenance, records
from shardwright.store.npy import BadArrayError
from shardwright.store.record_faults import is_stage1
from shardwright.store.records import BadRecordError
from shardwright.store.store import ARRAY_SUFFIX, Store

_NOTE_EVERY = 100_000  # ready records between two lines of a log
_BATCH = 1000  # arrays a worker checks at a time
_SHARD_SIZE = 1000  # what pack takes by default, since every shard adds a few bytes


def look(store: Store, output_dir: Path, engine: Engine, progress: Progress) -> StoreStatus:
    """Scan and check as packing would, then look at what it leaves out."""
    started = time.monotonic()
    recipe = store.recipe
    if store.jsonl.is_file():
        found = scan(store, progress, _NOTE_EVERY)
    elif store.jsonl == store.folder / JSONL_NAME:  # nothing derived yet, or nothing merged
        found = Scan(store, (0, 0))
    else:
        raise InputMissingError(f"{store.jsonl}: no such file; give the metadata with --jsonl")
    layout = plan(
        found,
        PackSettings(buckets=[], shuffle=False, seed=None, limit=None, shard_size=_SHARD_SIZE),
        known=(),
        first_numbers={},
        engine=engine,
        progress=progress,
    )
    ready = {found.ids[sample] for sample in found.ready()}
    others, stage1 = _others(store, ready) if found.skipped else ({}, 0)
    states = [
        _component(component, store, ready, others, engine, progress)
        for component in recipe.components
    ]
    for sample in found.ready():
        check()
        for state, nbytes in zip(states, layout.checked.sizes(sample), strict=True):
            state.bytes += nbytes
    components = {row.name: state for row, state in zip(recipe.components, states, strict=True)}
    leftovers = listing.leftovers(store)
    failures_file = store.state / FAILURES_NAME
    failures = len({failure.image_path for failure in read_failures(store)})
    known = facts.survey(store, ready | others.keys(), progress)
    packed = Packed(output_dir, ready, store)
    command, reason = _next(store, found, stage1, components, leftovers, packed)
    if failures:
        reason += f"; but {quantity(failures, 'images')} could not be derived"
    return StoreStatus(
        derived_dir=str(store.folder),
        jsonl=str(store.jsonl),
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
        packed=packed.summary(),
        failures=failures,
        failures_file=str(failures_file) if failures else None,
        changed_images=known.changed,
        gone_images=known.gone,
        unknown_images=len(ready) + len(others) - known.known,
        truncated=known.truncated,
        next_command=command,
        next_reason=reason,
        seconds=round(time.monotonic() - started, 3),
    )


def _others(store: Store, ready: Container[str]) -> tuple[dict[str, str], int]:
    """Give the ids that are not ready, each with its bucket if it has one, and count Stage 1."""
    others: dict[str, str] = {}
    stage1 = 0
    jsonl = store.jsonl
    with explained(jsonl), jsonl.open("rb", buffering=1 << 20) as file:
        for line in records.lines(file):
            check()
            try:
                record = records.parse(line.data)
            except BadRecordError:
                continue
            stage1 += is_stage1(record, store.recipe)
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
    component: Component,
    store: Store,
    ready: Collection[str],
    others: Collection[str],
    engine: Engine,
    progress: Progress,
) -> ComponentStatus:
    """Count a component's arrays, and the bytes of those that the plan has not seen."""
    folder = store.arrays(component)
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
    progress.phase(component.name, len(there), "arrays")
    starts = range(0, len(there), _BATCH)
    tasks = ((component, folder, there[first : first + _BATCH]) for first in starts)
    sound = 0
    with closing(engine.run(_count_sound, tasks)) as counts:
        for looked_at, good in counts:
            sound += good
            progress.advance(looked_at)
    state.complete = len(ready) + sound
    state.missing = len(others) - len(there)
    state.invalid = len(there) - sound
    return state


def _count_sound(task: tuple[Component, Path, list[str]]) -> Iterator[tuple[int, int]]:
    """Count the arrays of some ids, and those of them whose header and size are right."""
    component, folder, ids = task
    sound = 0
    for image_id in ids:
        check()
        with suppress(BadArrayError):
            fd = npy.open_array(folder / (image_id + ARRAY_SUFFIX))
            try:
                npy.check(fd, component)
                sound += 1
            finally:
                os.close(fd)
    yield len(ids), sound


def _next(
    store: Store,
    found: Scan,
    stage1: int,
    components: dict[str, ComponentStatus],
    leftovers: list[Path],
    packed: Packed,
) -> tuple[str | None, str]:
    """Choose the command that brings the store forward, and say why."""
    missing = sum(state.missing for state in components.values())
    recomputed = provenance.under_way(store.folder)
    if stage1:
        why = (  # only migrate can tell which it cannot take
            f"{quantity(stage1, 'records')} of Stage 1; what migrate cannot take, fix or delete "
            "its lines"
        )
        return commands.command("migrate", *commands.store_flags(store)), why
    if store.journal in leftovers:
        why = "an interrupted run left records to be merged"
    elif not found.total_records:
        why = "there is no record yet"
    elif missing:
        why = f"{quantity(missing, 'arrays')} missing"
    elif recomputed:
        why = f"a recompute of {' and '.join(recomputed)} was interrupted"
    elif found.skipped:
        wrong = quantity(found.skipped.total, "records")
        why = f"it names what is wrong with {wrong}, and the cure"
        return commands.command("verify", str(store.folder)), why
    else:
        return packed.next(store)
    return commands.derive(store), why
