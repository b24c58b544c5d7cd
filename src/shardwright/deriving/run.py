"""A run of derive, step by step: look, compare, plan, and then do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from shardwright.deriving import announce, generations, images, machine, prepare, sources
from shardwright.deriving import captions as caption_files
from shardwright.deriving.batches import BATCH_SIZE, Batcher, try_out
from shardwright.deriving.commit import Committer
from shardwright.deriving.generations import Generation
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.outcomes import Outcomes, write_failures
from shardwright.deriving.pipeline import Pipeline
from shardwright.deriving.plan import Plan, plan
from shardwright.deriving.settings import InForce
from shardwright.deriving.sources import Source
from shardwright.deriving.summary import ComponentSummary, DeriveSummary
from shardwright.encoders import Choice
from shardwright.encoders.base import Options
from shardwright.errors import NoSpaceError, SourceChangedError, StorageError, UsageError
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.recipe import Component
from shardwright.storage import locks
from shardwright.storage.local import free_bytes, require_space, require_writable
from shardwright.store import facts
from shardwright.store.folders import holds_shards
from shardwright.store.journal import Journal
from shardwright.store.provenance import SRGB
from shardwright.store.store import Store


@dataclass(frozen=True)
class Request:
    """What the user asked for, already checked."""

    images: Path
    store: Store
    captions: Path | None
    encoders: Choice
    options: Options
    components: tuple[Component, ...]
    recompute: frozenset[Component]
    discard: bool  # what an unfinished recompute has made
    drop_failed: bool  # the arrays of images that cannot be recomputed
    fit: str
    batch_size: int | None  # None for what fits into memory
    ignore_space: bool
    dry_run: bool


def run(request: Request, progress: Progress) -> DeriveSummary:
    """Do what was asked for, and sum it up."""
    started = time.monotonic()
    _require_place(request)
    found = sources.find(request.images, progress)
    captions = caption_files.read(request.captions, request.images) if request.captions else None
    # What is not there yet is made when the work begins: a run that cannot begin leaves no trace.
    new = not _is_begun(request)
    with ExitStack() as opened:
        journals = None if new else opened.enter_context(_opened(request, progress))
        inventory = Inventory(
            found,
            request.store,
            captions,
            progress,
            recompute=request.recompute,
        )
        settings = InForce(
            inventory,
            choice=request.encoders,
            options=request.options,
            fit=request.fit,
            recompute=request.recompute,
        )
        announce.unused_rows(captions, progress)
        outcomes = Outcomes()
        layout = _plan(request, inventory, settings, outcomes)
        summary = _outlook(request, layout, settings, outcomes)
        announce.work(summary, layout, settings, progress)
        announce.unfinished(request.store, settings, request.discard, progress)
        colours = settings.colours()
        stored = [c for c in request.components if colours.get(c, SRGB) != SRGB]
        with images.strict():
            summary.profiles_estimated = layout.count_profiles(stored, outcomes)
        if not request.ignore_space:
            try:
                _require_room(request, settings, summary.bytes_needed)
            except NoSpaceError as error:
                if not request.dry_run:
                    raise
                summary.obstacle = str(error)
        if not request.dry_run:
            for component in layout.work:
                try_out(settings.encoders[component])
            if new and _is_begun(request):
                locks.require_unlocked(request.store.folder)
                raise SourceChangedError(
                    f"{request.store.folder}: another run has written here; run again"
                )
            journals = journals or opened.enter_context(_opened(request, progress))
            assert journals is not None
            recovered = journals.records.recovered
            summary.recovered_records = recovered.records if recovered is not None else 0
            generation = settings.generation
            if generation is None:
                _note_touched(inventory, journals.facts)
                if request.discard:
                    generations.discard(request.store)
            settings.begin(layout.work)
            opening = nullcontext() if generation is None else generation.opened()
            with opening, _failures_kept(request, outcomes, found):
                pipeline = _pipeline(
                    request, layout, settings, outcomes, journals, summary, progress
                )
                pipeline.run(layout.tasks(), len(layout.numbers))
            if generation is not None:
                _swap(request, generation, summary)
            summary.derived, summary.already_complete = outcomes.derived, outcomes.complete
            summary.encoder_waited = round(pipeline.waited_part, 4)
    summary.failed, summary.failed_by_reason = len(outcomes.failures), outcomes.by_reason()
    summary.unapplied_profiles = outcomes.profiles
    announce.profiles(summary, stored, progress)
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _require_place(request: Request) -> None:
    """Raise if a store cannot be where it is asked for; before any work, so it is known at once."""
    derived, jsonl = request.store.folder, request.store.jsonl
    for folder in (derived, jsonl.parent):
        require_writable(folder)
    if jsonl.is_dir():
        raise UsageError(f"--jsonl {jsonl}: is a folder; give the metadata file of the store")
    if holds_shards(derived):
        raise UsageError(f"--derived-dir {derived}: holds shards; give the store, or a new folder")


def _is_begun(request: Request) -> bool:
    """Whether any run has ever written to the store."""
    return request.store.state.exists() or request.store.journal.exists()


def _require_room(request: Request, settings: InForce, needed: int) -> None:
    """Raise if the disk has less room than the arrays need; old ones stay until the swap."""
    folders = [str(request.store.arrays(component)) for component in settings.recomputed]
    instead = f"delete {' and '.join(folders)} to do without the old arrays, " * bool(folders)
    require_space(request.store.folder, "the arrays need about", needed, instead)


class Journals(NamedTuple):
    """What a run writes down: its records, and what is known of images beside them."""

    records: Journal
    facts: Journal


@contextmanager
def _opened(request: Request, progress: Progress) -> Iterator[Journals | None]:
    """Open the store for writing; not at all if nothing is to be written."""
    if request.dry_run:
        if request.store.journal.exists():
            progress.warn(
                f"{request.store.journal}: left by a run that was killed; the next run merges it"
            )
        yield None
        return
    with locks.lock(request.store.folder):
        request.store.make_folders()
        with (
            Journal(request.store.jsonl) as journal,
            Journal(facts.path_of(request.store)) as known,
        ):
            if journal.recovered is not None:
                count = quantity(journal.recovered.records, "records")
                progress.say(f"merged {count} of a run that was killed")
            generations.finish(request.store)
            yield Journals(journal, known)


def _swap(request: Request, generation: Generation, summary: DeriveSummary) -> None:
    """Put what was recomputed in use, if no array is lost by that or the user says so."""
    missing = generation.missing()
    for component, image_ids in missing.items():
        summary.components[component.name].not_recomputed = len(image_ids)
    if request.drop_failed or not any(missing.values()):
        generation.swap()
    else:
        summary.unfinished = [component.name for component in generation.entries]


def _note_touched(inventory: Inventory, journal: Journal) -> None:
    """Note the time and place of files that are the same as ever, so that none is read again."""
    for number in sorted(inventory.touched.keys() - inventory.problems.keys()):
        check()
        journal.append(to_builtins(inventory.facts(number)))
    journal.commit()


def _plan(request: Request, inventory: Inventory, settings: InForce, outcomes: Outcomes) -> Plan:
    """Decide what is to be done, and load the encoders that this takes."""
    settings.compare(request.components)
    with images.strict():
        layout = plan(inventory, request.components, settings.recomputed, outcomes)
    if settings.generation is not None:
        settings.generation.require_given({source.image_id for source in inventory.sources})
    settings.load(
        component
        for component in request.components
        if component in layout.work or (component.source == "caption" and layout.texts)
    )
    return layout


def _outlook(
    request: Request, layout: Plan, settings: InForce, outcomes: Outcomes
) -> DeriveSummary:
    """Sum up what is about to be done."""
    with images.strict():
        needed = layout.bytes_needed(request.fit)
    devices = sorted({encoder.device for encoder in settings.encoders.values()})
    replaced = layout.replaced_captions()
    return DeriveSummary(
        images_found=len(layout.inventory.sources),
        derived=len(layout.numbers),
        already_complete=outcomes.complete,
        failed=len(outcomes.failures),
        dry_run=request.dry_run,
        derived_dir=str(request.store.folder),
        components={
            component.name: ComponentSummary(
                there=layout.inventory.count(component),
                to_make=layout.to_make[component],
                bytes_needed=needed[component],
                settings=settings.settings.get(component),
            )
            for component in request.components
        },
        failed_by_reason=outcomes.by_reason(),
        kept_captions=len(layout.inventory.other_captions) - replaced,
        replaced_captions=replaced,
        unused_rows=layout.inventory.captions.unused() if layout.inventory.captions else {},
        changed_images=layout.changed,
        gone_images=sorted(layout.inventory.gone.values()),
        truncated={},
        unapplied_profiles={},
        profiles_estimated=False,
        recovered_records=0,
        bytes_needed=sum(needed.values()),
        free_bytes=free_bytes(request.store.folder),
        unfinished=[],
        obstacle=None,
        device=", ".join(devices),
        seconds=0,
        encoder_waited=0,
    )


def _pipeline(
    request: Request,
    layout: Plan,
    settings: InForce,
    outcomes: Outcomes,
    journals: Journals,
    summary: DeriveSummary,
    progress: Progress,
) -> Pipeline:
    progress.phase("derive", len(layout.numbers), "images")
    target = settings.generation or journals
    rooms = {} if request.batch_size else machine.rooms(settings.encoders)  # once models are loaded
    return Pipeline(
        partial(
            prepare.read,
            encoders=settings.encoders,
            fit=request.fit,
            colours=settings.colours(),
            recipe=request.store.recipe,
        ),
        Batcher(settings.encoders, request.batch_size or BATCH_SIZE, progress, rooms),
        Committer(
            store=settings.generation.store if settings.generation else request.store,
            journal=target.records,
            facts=target.facts,
            fits=settings.fits(),
            generation=settings.generation,
            outcomes=outcomes,
            summaries={c: summary.components[c.name] for c in request.components},
            truncated=summary.truncated,
            progress=progress,
        ),
        progress,
    )


@contextmanager
def _failures_kept(request: Request, outcomes: Outcomes, found: list[Source]) -> Iterator[None]:
    """Write down the failures, however the work ends."""
    names = [component.name for component in request.components]
    try:
        yield
    except BaseException as error:
        with suppress(StorageError):  # the error that brought us here is the one to report
            seen = {failure.image_path for failure in outcomes.failures}
            write_failures(request.store, outcomes, seen, names)
        if isinstance(error, KeyboardInterrupt):
            saved = quantity(outcomes.derived, "images")
            error.add_note(f"{saved} saved. Run the same command to continue")
        raise
    seen = {source.path for source in found}
    write_failures(request.store, outcomes, seen, names)
