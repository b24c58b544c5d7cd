"""``pack --sync``: the shards follow a store that has changed.

Only shards with changed or removed samples are written again, from the store and under the same
number; what is new goes to new shards. If a shard becomes empty, the last one of its bucket takes
its number, so that numbers have no gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from shardwright.engine import Engine
from shardwright.errors import OutdatedError, UsageError
from shardwright.packing.again import jsonl_name
from shardwright.packing.choice import Choice
from shardwright.packing.jobs import Job
from shardwright.packing.outdated import Compared, Comparison, compare, of_jsonl
from shardwright.packing.plan import Again, Checked, reasons, require_ready
from shardwright.packing.scan import Scan
from shardwright.packing.select import Selected
from shardwright.packing.splits import Target
from shardwright.packing.start import Start, restricted
from shardwright.progress import Progress, quantity
from shardwright.shards.format.manifest import Before
from shardwright.shards.format.names import shard_number
from shardwright.storage.urls import Location
from shardwright.store import commands


def follow(
    targets: Sequence[Target],
    starts: Sequence[Start],
    found: Scan,
    choice: Choice,
    selected: Selected,
    engine: Engine,
    progress: Progress,
) -> tuple[list[Start], Comparison]:
    """Find the shards that stay and those to write again; leave what is new in ``selected``.

    Give also what has changed in all targets.
    """
    followed, total = [], Comparison()
    anywhere = set(selected.order)
    for target, start in zip(targets, starts, strict=True):
        own = None if target.part is None else set(selected.of_part(selected.order, target.part))
        result = compare(
            target.folder,
            start.packed,
            found,
            (anywhere if own is None else own).__contains__,
            engine,
            progress,
            lists=lambda name: choice.fault(name, None) is None,
            elsewhere=anywhere.__contains__,
        )
        require_ready(found.store, result.not_ready)
        followed.append(_followed(start, result))
        total.add(result)
    staying = {sample for shard in total.shards for sample in shard.samples}
    selected.order = [sample for sample in selected.order if sample not in staying]
    selected.packed_before = len(staying)
    return followed, total


def _followed(start: Start, result: Comparison) -> Start:
    buckets: dict[str, list[Compared]] = {}
    for each in result.shards:
        buckets.setdefault(each.shard.entry.bucket, []).append(each)
    kept, again = [], []
    for bucket, shards in buckets.items():
        for number, each in _numbered(shards).items():
            entry = each.shard.entry
            if each.outdated or number != shard_number(entry.path):
                again.append(Again(bucket, number, each.samples, entry.path))
            else:
                kept.append(entry)
    packed = [each.shard for each in result.shards]
    return replace(start, base=restricted(start.base, kept), packed=packed, again=again)


def _numbered(shards: Sequence[Compared]) -> dict[int, Compared]:
    """Give the shards of a bucket that are not empty their numbers; the last ones fill gaps."""
    full = {shard_number(each.shard.entry.path): each for each in shards if each.samples}
    gaps = [number for number in range(len(full)) if number not in full]
    last = sorted((number for number in full if number >= len(full)), reverse=True)
    moved = dict(zip(last, gaps, strict=True))
    return {moved.get(number, number): each for number, each in full.items()}


def require_some_left(starts: Sequence[Start], selected: Selected, checked: Checked) -> None:
    """Raise if all packed samples would go, and no new one come."""
    packed = sum(len(shard.ids) for start in starts for shard in start.packed)
    if packed and not selected.packed_before and not checked.chosen:
        what = f"no sample would be left of {quantity(packed, 'packed samples')}"
        fix = "check the store and what is selected; to remove all shards, delete their folder"
        raise UsageError(what, fix=fix)


def require_current(
    job: Job, selected: Selected, output: Location, engine: Engine, progress: Progress
) -> None:
    """Raise if packed samples are outdated, before others are appended to them."""
    scan, runs = job.layout.scan, job.start.base.runs
    packed = of_jsonl(jsonl_name(scan.store), job.start.packed, runs)
    stays = lambda sample: sample not in selected.unselected  # noqa: E731
    result = compare(job.folder, packed, scan, stays, engine, progress)
    if result.outdated:
        kinds = {"changed": result.changed, "removed": result.removed}
        listed = [
            f"{counts.total:,} {kind} {reasons(counts)}" for kind, counts in kinds.items() if counts
        ]
        are = "is" if result.outdated == 1 else "are"
        count = quantity(result.outdated, "packed samples")
        what = f"{count} {are} outdated: {', '.join(listed)}, so nothing was written"
        sync = commands.pack(scan.store, output, "--sync")
        fix = f"to update the shards and pack what is new, run {sync}"
        raise OutdatedError(what, path=job.folder, fix=fix)


def note(start: Start) -> Before | UnsetType:
    """Write down what is needed to finish a sync although old shards are gone."""
    if start.before is None:
        return UNSET
    stay = {entry.path for entry in start.base.shards}
    going = [shard for shard in start.packed if shard.entry.path not in stay]
    return Before(
        start.before,
        {shard.entry.path: list(shard.ids) for shard in going},
        {shard.entry.path: dict(shard.changes) for shard in going if shard.changes},
    )
