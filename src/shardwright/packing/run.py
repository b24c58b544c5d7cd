"""A run of packing from start to end: scan, check, plan, write, publish."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from shardwright.errors import (
    NoSpaceError,
    OutdatedError,
    ProvenanceError,
    ShardExistsError,
    SourceChangedError,
    StorageError,
    UsageError,
)
from shardwright.packing import again, publish, start
from shardwright.packing.again import (
    jsonl_name,
    require_same_kind,
    require_same_source,
)
from shardwright.packing.choice import Request, read_choice
from shardwright.packing.jobs import Job, foreseen, job_of, summarize
from shardwright.packing.outdated import follow, require_current, require_some_left
from shardwright.packing.plan import check, plan
from shardwright.packing.scan import Scan, require_inputs, scan
from shardwright.packing.select import Selected, select
from shardwright.packing.splits import Staying, find_targets
from shardwright.packing.start import Start, Target, existing
from shardwright.packing.summary import PackSummary
from shardwright.progress import Progress
from shardwright.recipes.split import Split
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Unfinished
from shardwright.shards.format.names import existing_buckets
from shardwright.shards.format.parts import is_packed, parts_of
from shardwright.storage.place import place_at
from shardwright.storage.urls import is_within, relative_name
from shardwright.store import provenance
from shardwright.store.provenance import Entry
from shardwright.store.store import Store, read_identity
from shardwright.summary import require_sum


@dataclass(frozen=True)
class _Source:
    """What a run takes from the store besides the samples."""

    store_id: str | UnsetType
    made: Mapping[str, Entry]  # how the arrays were made
    empties: Mapping[str, bytes]  # the empty caption


def run(request: Request, progress: Progress) -> PackSummary:
    """Scan, check, plan, and write what is not there yet."""
    started = time.monotonic()
    store, output, engine = request.store, request.output_dir, request.engine
    require_inputs(store)
    _require_own_folder(request)
    place_at(output).require_writable()
    split, targets = _targets(request)
    for target in targets:
        place_at(target.folder).require_writable()
        if not request.dry_run:
            place_at(target.folder).require_unlocked()
    starts = _starts(request, targets)
    last = again.last_run(request, targets)
    top = again.top_of(output, targets)
    store_id = read_identity(store)
    for begin in starts if request.way else ():
        require_same_source(store, store_id, begin, top)
    choice = read_choice(again.settings_of(request, split, starts, last), store, top)
    settings = choice.settings
    asked = again.Asked(output, request.way, request.given, store.folder)
    again.announce(asked, last, settings, targets, progress)
    choice.staying.announce(top, request.way, progress)
    found = scan(store, progress, request.progress_every)
    _require_samples(request.settings.buckets, found)
    source = _source(store, store_id)
    known = frozenset().union(*(begin.known for begin in starts), _beside(targets))
    parts = [target.part for target in targets]
    packed = {name for begin in starts if begin.before for one in begin.packed for name in one.ids}
    selected = select(found, choice, parts, known, packed, engine, progress)
    followed, synced, limit = starts, None, settings.limit
    if any(begin.before for begin in starts):
        followed, synced = follow(starts, found, choice, selected, engine, progress)
        if limit is not None:  # then it bounds the samples of all shards
            again.warn_of_limit(limit, selected.packed_before, request, progress)
            limit = max(0, limit - selected.packed_before)
    kept = [sample for begin in followed for shard in begin.again for sample in shard.samples]
    checked = check(found, selected.order, limit, engine, progress, kept)
    if synced is not None:
        require_some_left(starts, selected, checked)
    jobs = []
    for begin in followed:
        chosen = selected.of_part(checked.chosen, begin.part)
        own = msgspec.structs.replace(settings, part=begin.part)
        layout = plan(found, checked, chosen, own, begin.first_numbers, begin.again)
        jobs.append(job_of(begin, layout, request.way))
    active = [job for job in jobs if _has_work(job, jobs)]
    obstacle = _obstacle(active, selected, source, request, progress)
    with ExitStack() as locked:
        if not request.dry_run:
            for job in active:
                locked.enter_context(place_at(job.folder).lease())
            if active and (
                _targets(request) != (split, targets) or _starts(request, targets) != starts
            ):
                what = "another run has written here"
                raise SourceChangedError(what, path=output, fix="run again")
        # Shards that are removed or replaced.
        old = {job.start.prefix: job.old for job in active if not obstacle}
        if active and not request.dry_run:
            _write(active, source, choice.staying, request, progress)
    summary = summarize(
        jobs,
        selected,
        checked,
        found,
        old,
        synced,
        output=output,
        dry_run=request.dry_run,
        obstacle=obstacle,
        started=started,
    )
    if split is not None:
        # Here, because it takes long to load.
        from shardwright.comparing.parts import find_copies, foresee_copies

        if request.dry_run:
            samples, new = list(foreseen(jobs, found)), last is None
            summary.copies = foresee_copies(samples, store, top, settings, new, progress)
        else:
            summary.copies = find_copies(top, progress)
        summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _targets(request: Request) -> tuple[Split | None, list[Target]]:
    return find_targets(request.output_dir, request.settings, request.way, request.given)


def _starts(request: Request, targets: Sequence[Target]) -> list[Start]:
    if request.way == "append":
        return list(map(start.append, targets))
    if request.way == "sync":
        starts = list(map(start.sync, targets))
        if not any(is_packed(target.folder) for target in targets):  # perhaps a typing mistake
            what, fix = "no shards to sync", "leave out --sync"
            raise UsageError(what, path=request.output_dir, fix=fix)
        return starts
    if request.way == "resume":
        current = start.current_run(target.folder for target in targets if target.part)
        return [start.resume(target, current) for target in targets]
    overwrite, only = request.way == "overwrite", request.settings.buckets
    return [start.fresh(target, overwrite=overwrite, only=only) for target in targets]


def _beside(targets: Sequence[Target]) -> frozenset[str]:
    """Give the ids in the other parts, where a run packs one part alone."""
    folder = targets[0].folder.absolute()
    if not again.alone(targets):
        return frozenset()
    others = (path for path in parts_of(folder.parent).values() if path != folder)
    return frozenset().union(*map(start.packed_ids, others))


def _source(store: Store, store_id: str | None) -> _Source:
    known = provenance.read(store.folder).items()
    made = {name: entry for name, entry in known if name in store.recipe.by_name}
    return _Source(store_id or UNSET, made, publish.read_empty(store))


def _has_work(job: Job, jobs: Sequence[Job]) -> bool:
    """Whether a run changes anything in a target, or brings its manifest up to date."""
    if job.layout.shards:
        return True
    if job.start.before:
        return job.has_other_settings or bool(job.start.note or job.old)
    if job.start.append:
        return bool(job.start.base.runs or job.start.note)
    # With --overwrite, the shards of a part that has no sample now go with those of the others.
    return bool(job.start.replaced) and any(other.layout.shards for other in jobs)


def _obstacle(
    jobs: Sequence[Job],
    selected: Selected,
    source: _Source,
    request: Request,
    progress: Progress,
) -> str | None:
    """Raise if the run cannot write one of its targets; under dry_run, say why."""
    store, output = request.store, request.output_dir
    try:
        for job in jobs:
            there = list(job.start.loose)
            if not request.way:
                planned = dict.fromkeys(shard.bucket for shard in job.layout.shards)
                there += existing(job.folder, planned)
            publish.refuse(job.folder, there, request.settings.buckets)
            require_same_source(store, source.store_id or None, job.start, output)
            base = job.start.before or job.start.base
            require_same_kind(store, source.made, base, job.folder, progress)
            if job.start.append:
                scan = job.layout.scan
                require_current(job.start, scan, selected, output, request.engine, progress)
        if jobs and not request.ignore_space:
            needed = sum(shard.bytes for job in jobs for shard in job.todo)
            fewer = "pack fewer with --limit or --bucket, "
            place_at(output).require_space("the shards need", needed, fewer)
    except (ShardExistsError, ProvenanceError, OutdatedError, NoSpaceError) as error:
        if not request.dry_run:
            raise
        return str(error)
    return None


def _require_own_folder(request: Request) -> None:
    """Keep shards out of the store's own folders."""
    output, store = request.output_dir, request.store
    arrays = [store.arrays(component) for component in store.recipe.components]
    own = output.resolve() == store.folder.resolve()
    if own or any(is_within(output, folder) for folder in arrays):
        raise UsageError("belongs to the store", path=output, fix="give another --output-dir")


def _require_samples(only: Sequence[str], found: Scan) -> None:
    """Raise for a bucket that is neither in the recipe nor in the store: a typing mistake."""
    present = {found.buckets[sample] for sample in found.ready()} if only else set()
    for name in sorted(set(only) - present - set(map(str, found.store.recipe.buckets))):
        fix = f"give some of {', '.join(sorted(present))}" if present else None
        raise UsageError(f"--bucket {name}: no ready sample is in it", fix=fix)


def _write(
    jobs: Sequence[Job], source: _Source, staying: Staying, request: Request, progress: Progress
) -> None:
    """Write the shards that are missing, then the manifest of each target."""
    parts = {
        job.start.part: job.layout.digest
        for job in jobs
        if job.start.part and (job.layout.shards or job.start.before)
    }
    for job in jobs:  # a part that the interrupted sync has finished belongs to this run
        if job.start.before and job.start.note:
            parts = {**(job.start.note.parts or {}), **parts}
    begun = [
        Unfinished(
            append=job.start.append,
            plan=job.layout.digest,
            settings=job.layout.settings,
            replaces=sorted(job.start.replaced),
            base=job.start.base,
            store=relative_name(request.store.folder, job.folder),
            jsonl=jsonl_name(request.store),
            store_id=source.store_id,
            parts=parts or UNSET,
            sync=job.start.sync,
            groups=UNSET if job.start.append or job.start.before else dict(staying.parts) or UNSET,
        )
        for job in jobs
    ]
    try:
        # All of them first, so that --resume finds every part of the run.
        for job, note in zip(jobs, begun, strict=True):
            manifest.save_unfinished(job.folder, note)
        # Last those that only lose shards, when the samples are elsewhere.
        for job, note in sorted(
            zip(jobs, begun, strict=True), key=lambda pair: not pair[0].layout.shards
        ):
            _write_target(job, note, source, request, progress)
    except KeyboardInterrupt as interrupt:
        instead = f" instead of --{request.way}" if request.way not in (None, "resume") else ""
        interrupt.add_note(f"to continue, run the same pack with --resume{instead}")
        raise
    except StorageError as error:
        same = "run the same command again"
        if error.fix is None or same not in error.fix:
            raise
        fix = error.fix.replace(same, "run the same pack with --resume")
        raise type(error)(error.what, path=error.path, fix=fix) from error


def _write_target(
    job: Job, begun: Unfinished, source: _Source, request: Request, progress: Progress
) -> None:
    begin, layout, folder = job.start, job.layout, job.folder
    sha256 = request.sha256 or begin.has_sha256
    if begin.append:  # an interrupted one may have left shards that are not planned now
        keep = job.stay
        if not place_at(folder).can_replace:  # another run of this plan may have written one
            keep |= {shard.path for shard in job.todo}
        for name in existing_buckets(folder):
            publish.remove_shards(folder, name, keep=keep)
    written = publish.write(job, sha256=sha256, engine=request.engine, progress=progress)
    # No new shard is in the others, and mostly no sample any more.
    for name in sorted(set(begin.replaced) - {shard.bucket for shard in job.todo}):
        manifest.remove_manifest(folder)
        publish.remove_shards(folder, name, keep=job.stay)
    publish.remove_empty_buckets(folder)
    entries = [*job.kept.values(), *written]
    planned = sum(len(shard.samples) for shard in layout.shards)
    require_sum("samples planned", planned, *(entry.samples for entry in entries))
    scan, checked = layout.scan, layout.checked
    run = publish.run_of(begun, scan.total_records, checked.skipped, entries, source.made)
    recipe, base = scan.store.recipe, begin.base
    publish.finish(folder, base, run, entries, recipe, source.empties, sha256=sha256)
    manifest.remove_unfinished(folder, begun.plan)
