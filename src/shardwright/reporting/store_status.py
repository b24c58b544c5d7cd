"""The status of a store: its records, its arrays, its future shards, and what to do next."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Container, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from shardwright import interrupts
from shardwright.buckets import Bucket, is_bucket
from shardwright.deriving import generations
from shardwright.deriving.outcomes import FAILURES_NAME, read_failures
from shardwright.engine import Engine
from shardwright.errors import InputMissingError
from shardwright.layout import JSONL_NAME
from shardwright.packing.plan import Plan, check, plan
from shardwright.packing.scan import Scan, scan
from shardwright.progress import Progress, quantity
from shardwright.reporting import BucketStatus, ComponentStatus, Outlook, StoreStatus
from shardwright.reporting.export import write_table
from shardwright.reporting.packed_status import Packings
from shardwright.reporting.rows import Rows
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage.urls import Location
from shardwright.store import (
    commands,
    facts,
    records,
)
from shardwright.store.facts import Attention
from shardwright.store.faults import ANYTHING, check_all, is_stage1
from shardwright.store.provenance import Entry
from shardwright.store.store import Store

_NOTE_EVERY = 100_000  # ready records between two lines of a log
_SHARD_SIZE = 1000  # pack's default, because every shard adds a few bytes


def report_on(
    store: Store,
    output_dir: Location,
    engine: Engine,
    progress: Progress,
    table: Path | None = None,
    captions: Path | None = None,
) -> StoreStatus:
    """Scan and check as packing does, then count what it leaves out; and fill a table."""
    started = time.monotonic()
    if store.jsonl.is_file():
        found = scan(store, progress, _NOTE_EVERY)
    elif store.jsonl == store.folder / JSONL_NAME:  # nothing derived yet, or nothing merged
        found = Scan(store, (0, 0))
    else:
        fix = "give the metadata with --jsonl"
        raise InputMissingError("no such file", path=store.jsonl, fix=fix)
    settings = PackSettings(
        buckets=[], shuffle=False, seed=None, limit=None, shard_size=_SHARD_SIZE
    )
    checked = check(found, list(found.ready()), None, engine, progress)
    layout = plan(found, checked, checked.chosen, settings, {})
    ready = {found.ids[sample] for sample in checked.chosen}
    others, stage1 = not_ready(store, ready) if checked.skipped else ({}, 0)
    components = {
        component.name: _component(row, store, ready, others, engine, progress)
        for row, component in enumerate(store.recipe.components)
    }
    for sample in checked.chosen:
        interrupts.check()
        for state, nbytes in zip(components.values(), checked.sizes(sample), strict=True):
            state.bytes += nbytes
    failures = len({failure.image_path for failure in read_failures(store)})
    known = facts.survey(store, ready | others.keys(), progress)
    outlooks = _outlooks(store, captions, progress)
    gone = sorted({path for _, those in outlooks for path in those}) if outlooks else known.gone
    updates = sorted((each for each, _ in outlooks), key=lambda each: not _needs(each))
    packed = Packings(output_dir, ready, found, engine, progress)
    begun, made = generations.unfinished(store)
    status = StoreStatus(
        derived_dir=str(store.folder),
        jsonl=str(store.jsonl),
        total_records=found.total_records,
        ready_records=checked.ready_records,
        skipped_incomplete=checked.skipped.total,
        skipped_by_reason=dict(checked.skipped),
        stage1_records=stage1,
        components=components,
        buckets=_buckets(layout, others),
        jsonl_bytes=found.jsonl_state[0],
        store_bytes=found.jsonl_state[0] + sum(state.bytes for state in components.values()),
        shards=len(layout.shards),
        shard_bytes=sum(shard.bytes for shard in layout.shards),
        leftovers=list(map(str, store.leftovers())),
        packed=packed.summary(),
        unfinished=dict.fromkeys(begun, made),
        failures=failures,
        failures_file=str(store.state / FAILURES_NAME) if failures else None,
        changed_images=known.changed,
        gone_images=gone,
        unknown_images=len(ready) + len(others) - known.known,
        truncated=known.truncated,
        quality=known.quality,
        attention=list(_attention(known)),
        update=updates[0] if updates else None,
        further_updates=[each for each in updates[1:] if _needs(each)],
        seconds=0.0,
    )
    status.next_command, status.next_reason = _next(store, status, begun) or packed.next()
    if table is not None:
        rows = Rows(found, checked.invalid, ready, others.keys())
        status.exported = write_table(table, rows, progress)
    if failures:
        status.next_reason += f"; but {quantity(failures, 'images')} could not be derived"
    status.seconds = round(time.monotonic() - started, 3)
    return status


def not_ready(store: Store, ready: Container[str]) -> tuple[dict[str, str], int]:
    """Give the ids that are not ready, with their buckets if valid, and count Stage 1 records."""
    others: dict[str, str] = {}
    stage1 = 0
    for _, record in records.walk(store.jsonl, records.parse):
        stage1 += is_stage1(record, store.recipe)
        image_id, bucket = record.get("image_id"), record.get("aspect_bucket")
        if records.is_image_id(image_id) and image_id not in ready:
            spelt = isinstance(bucket, str) and is_bucket(bucket)
            others[image_id] = sys.intern(str(bucket)) if spelt else ""
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
    store: Store,
    ready: Collection[str],
    others: Collection[str],
    engine: Engine,
    progress: Progress,
) -> ComponentStatus:
    """Count a component's arrays, and the bytes of those that are not ready."""
    component = store.recipe.components[row]
    state = ComponentStatus()
    there: list[str] = []  # arrays of images that are not ready
    for image_id in store.array_ids(component):
        if image_id in ready:
            continue
        with suppress(OSError):  # a link to nowhere
            state.bytes += os.stat(store.array(component, image_id)).st_size
        if image_id in others:
            there.append(image_id)
        else:
            state.orphaned += 1
    progress.phase(component.name, len(there), "arrays")
    with closing(check_all(store, (row,), there, [ANYTHING] * len(there), engine)) as batches:
        for batch in batches:
            state.invalid += len(batch.faults)
            progress.advance(batch.samples)
    state.complete = len(ready) + len(there) - state.invalid
    state.missing = len(others) - len(there)
    return state


def _attention(known: facts.Survey) -> Iterator[Attention]:
    """List what needs attention, besides what is not ready."""
    quality = known.quality
    for name, cut in known.truncated.items():
        yield from facts.truncated(name, cut.captions, cut.example)
    for flag, count, found in (
        (facts.ENLARGED, quality.much_enlarged, quality.enlarged),
        (facts.CROPPED, quality.much_cropped, quality.cropped),
    ):
        yield from facts.much(flag, count, found.most, found.example)


def _next(
    store: Store, status: StoreStatus, begun: dict[str, Entry]
) -> tuple[str | None, str] | None:
    """Choose the command that makes every record ready, with the reason; None if all are."""
    by_name = store.recipe.by_name
    elsewhere = {
        n: s.missing for n, s in status.components.items() if by_name[n].source == "elsewhere"
    }
    missing = sum(state.missing for state in status.components.values()) - sum(elsewhere.values())
    planned = status.update
    derive = partial(commands.derive, store, images=planned.images if planned else None)
    if stage1 := status.stage1_records:
        why = f"{quantity(stage1, 'records')} in Stage 1 format; fix or delete what it reports"
        return commands.command("migrate", *commands.store_flags(store)), why
    if planned and planned.captions_gone:
        name = "--captions FILE names another, --captions none forgets it"
        return derive(begun=begun, forget_captions=True), f"the captions file is gone: {name}"
    if planned and planned.captions_problem:
        return None, f"derive would stop: {planned.captions_problem}"
    if str(store.journal) in status.leftovers:
        why = "an interrupted run left records to merge"
    elif not status.total_records:
        why = "there are no records yet"
    elif missing:
        why = f"{quantity(missing, 'arrays')} missing"
        if planned and planned.changed.count and not begun:  # only an update makes those of these
            return derive(update=True), why
    elif begun:
        why = f"the {generations.name_of(begun)} is unfinished; --recompute none discards it"
        return derive(begun=begun), why
    elif planned and (why := _changes(planned)):
        return derive(update=why != _changes(planned, only_new=True)), why
    elif any(elsewhere.values()):
        counts = (quantity(count, f"{name} arrays") for name, count in elsewhere.items() if count)
        return None, f"{' and '.join(counts)} missing, which your own tool makes"
    elif status.skipped_incomplete:
        wrong = quantity(status.skipped_incomplete, "records")
        why = f"{wrong} not ready; verify names each fault and its fix"
        return commands.command("verify", str(store.folder)), why
    else:
        return None
    return derive(), why


def _outlooks(
    store: Store, captions: Path | None, progress: Progress
) -> list[tuple[Outlook, list[str]]]:
    """Compare the store with each folder of images that it was made from."""
    found = commands.images_folders(store)
    if not found:
        return []
    # Here, because reading pictures needs NumPy, which takes a while to import.
    from shardwright.reporting.outlook import outlook

    seen: list[tuple[Outlook, list[str]]] = []
    for each in found:
        listed = {path for update, _ in seen for path in update.undecided}
        if one := outlook(store, each, progress, captions, {*found} - {each}, listed):
            seen.append(one)
    return seen


def _needs(update: Outlook) -> bool:
    """Whether an update of a folder would do something, or cannot."""
    kept = update.gone.count or update.undecided
    return bool(update.captions_problem or _changes(update) or kept)


def _changes(update: Outlook, *, only_new: bool = False) -> str:
    """Say what is not in the store as it is in the folder; nothing if all is."""
    counts = {"new images": update.new, "changed rows": update.columns}
    if not only_new:
        counts |= {"changed images": update.changed, "changed captions": update.captions}
        counts["renamed images"] = update.renamed
    return ", ".join(quantity(found.count, unit) for unit, found in counts.items() if found.count)
