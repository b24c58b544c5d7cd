"""A run of derive, step by step: look, compare, plan, and then do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from shardwright.deriving import captions as caption_files
from shardwright.deriving import images, machine, prepare, sources
from shardwright.deriving.batches import BATCH_SIZE, Batcher, try_out
from shardwright.deriving.captions import Captions
from shardwright.deriving.commit import Committer
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.outcomes import Outcomes, write_failures
from shardwright.deriving.pipeline import Pipeline
from shardwright.deriving.plan import Plan, plan
from shardwright.deriving.remade import Remade
from shardwright.deriving.settings import Making
from shardwright.deriving.sources import Source
from shardwright.deriving.summary import ComponentSummary, DeriveSummary
from shardwright.encoders import Choice
from shardwright.encoders.base import Options
from shardwright.errors import NoSpaceError, SourceChangedError, StorageError, UsageError
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity, size
from shardwright.recipe import Component
from shardwright.storage import locks
from shardwright.storage.local import free_bytes, require_space, require_writable
from shardwright.store import facts
from shardwright.store.folders import holds_shards
from shardwright.store.journal import Journal
from shardwright.store.provenance import SRGB
from shardwright.store.store import Store
from shardwright.text import shown

_UNUSED = {
    "no_such_image": "of no image here",
    "no_caption": "without a caption",
    "caption_is_list": "whose caption is a list; give one string",
    "caption_not_string": "whose caption is not a string; give one string",
    "repeated": "replaced by a later one of the same image",
}


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
        making = Making(
            inventory,
            choice=request.encoders,
            options=request.options,
            fit=request.fit,
            recompute=request.recompute,
        )
        _warn_of_rows(captions, progress)
        outcomes = Outcomes()
        layout = _plan(request, inventory, making, outcomes)
        summary = _outlook(request, layout, making, outcomes)
        _announce(summary, layout, making, progress)
        colours = making.colours()
        stored = [c for c in request.components if colours.get(c, SRGB) != SRGB]
        with images.strict():
            summary.profiles_estimated = layout.count_profiles(stored, outcomes)
        if not request.ignore_space:
            try:
                require_space(request.store.folder, "the arrays need about", summary.bytes_needed)
            except NoSpaceError as error:
                if not request.dry_run:
                    raise
                summary.obstacle = str(error)
        if not request.dry_run:
            for component in layout.work:
                try_out(making.encoders[component])
            if new and _is_begun(request):
                locks.require_unlocked(request.store.folder)
                raise SourceChangedError(
                    f"{request.store.folder}: another run has written here; run again"
                )
            journals = journals or opened.enter_context(_opened(request, progress))
            assert journals is not None
            recovered = journals.records.recovered
            _note_touched(inventory, journals.facts)
            summary.recovered_records = recovered.records if recovered is not None else 0
            making.begin(layout.work, layout.image_ids)
            with (
                Remade(request.store, making.noted) as remade,
                _failures_kept(request, outcomes, found),
            ):
                pipeline = _pipeline(
                    request, layout, making, outcomes, journals, remade, summary, progress
                )
                pipeline.run(layout.tasks(), len(layout.numbers))
            making.finish()
            summary.derived, summary.already_complete = outcomes.derived, outcomes.complete
            summary.encoder_waited = round(pipeline.waited_part, 4)
    summary.failed, summary.failed_by_reason = len(outcomes.failures), outcomes.by_reason()
    summary.unapplied_profiles = outcomes.profiles
    _warn_of_profiles(summary, stored, progress)
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
            yield Journals(journal, known)


def _note_touched(inventory: Inventory, journal: Journal) -> None:
    """Note the time and place of files that are the same as ever, so that none is read again."""
    for number in sorted(inventory.touched.keys() - inventory.problems.keys()):
        check()
        journal.append(to_builtins(inventory.facts(number)))
    journal.commit()


def _plan(request: Request, inventory: Inventory, making: Making, outcomes: Outcomes) -> Plan:
    """Decide what is to be done, and load the encoders that this takes."""
    making.compare(request.components)
    with images.strict():
        layout = plan(inventory, request.components, making.renewed, making.replaced, outcomes)
    making.require_all(layout.image_ids)
    making.load(
        component
        for component in request.components
        if component in layout.work or (component.source == "caption" and layout.texts)
    )
    return layout


def _outlook(request: Request, layout: Plan, making: Making, outcomes: Outcomes) -> DeriveSummary:
    """Sum up what is about to be done."""
    with images.strict():
        needed = layout.bytes_needed(request.fit)
    devices = sorted({encoder.device for encoder in making.encoders.values()})
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
                settings=making.settings.get(component),
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
        obstacle=None,
        device=", ".join(devices),
        seconds=0,
        encoder_waited=0,
    )


def _announce(summary: DeriveSummary, layout: Plan, making: Making, progress: Progress) -> None:
    """Say what is about to be done, and what may stand in its way."""
    progress.say(
        f"{quantity(summary.images_found, 'images')}: {summary.derived:,} to derive, "
        f"{summary.already_complete:,} already complete, {summary.failed:,} cannot be derived"
    )
    for component in layout.work:
        part = summary.components[component.name]
        model = making.settings[component].get("model", "an encoder of your own")
        what, room = f"{part.to_make:,} to make with {model}", size(part.bytes_needed)
        progress.say(f"  {component.name}: {what}; needs about {room}")
    if summary.fit is not None:
        progress.say(f"  fit {summary.fit}")
    if layout.work:
        room, free = size(summary.bytes_needed), size(summary.free_bytes)
        progress.say(f"  on {summary.device}; about {room} will be needed, {free} are free")
    slow = [
        component.name
        for component in layout.work
        if making.encoders[component].device == "cpu"
        and making.settings[component].get("dtype") == "bfloat16"
    ]
    if slow and not machine.has_bfloat16():
        progress.warn(
            f"{', '.join(slow)}: this CPU has no instructions for bfloat16, which makes it up to "
            "150 times slower; give --dtype float32"
        )
    for component in layout.components:
        if unknown := making.unknown_arrays(component):
            arrays = quantity(unknown, f"{component.name} arrays")
            progress.warn(f"{arrays} made elsewhere, and kept")
    if summary.kept_captions:
        names = [c.name for c in layout.inventory.store.recipe.captions]
        progress.warn(
            f"{quantity(summary.kept_captions, 'captions')} changed after encoding; keeping the "
            f"old. Use --recompute {','.join(names)} to update"
        )
    if summary.replaced_captions:
        progress.warn(
            f"{quantity(summary.replaced_captions, 'captions')} changed after encoding; taking the "
            "new"
        )
    if changed := summary.changed_images:
        pictures = ",".join(c.name for c in layout.inventory.store.recipe.pictures)
        progress.warn(
            f"{quantity(len(changed), 'images')} changed after encoding, for example "
            f"{shown(changed[0])}; the arrays show the old picture until --recompute {pictures}"
        )
    if gone := summary.gone_images:
        progress.warn(
            f"{quantity(len(gone), 'images')} gone after encoding, for example {shown(gone[0])}; "
            "records and arrays are kept"
        )


def _warn_of_rows(captions: Captions | None, progress: Progress) -> None:
    """Say which rows of the captions came to nothing; this may be why images have none."""
    if captions is None:
        return
    for reason, rows in captions.unused().items():
        what = f"{quantity(rows.count, 'rows')} {_UNUSED[reason]}"
        progress.warn(f"{captions.path}: {what}, for example {shown(rows.example)}")
    if not captions.by_name:
        progress.warn(f"{captions.path}: holds no caption")


def _warn_of_profiles(summary: DeriveSummary, stored: list[Component], progress: Progress) -> None:
    """Say which images were not converted to sRGB."""
    if ignored := summary.unapplied_profiles.get("profile_ignored"):
        names = ",".join(component.name for component in stored)
        about = "about " if summary.profiles_estimated else ""
        progress.warn(
            f"colour profile ignored in {about}{quantity(ignored.count, 'images')}, for example "
            f"{shown(ignored.example)}: the {names} arrays of this store were made without colour "
            f"profiles; --recompute {names} converts all images to sRGB"
        )
    if bad := summary.unapplied_profiles.get("profile_not_usable"):
        progress.warn(
            f"colour profile not usable in {quantity(bad.count, 'images')}, for example "
            f"{shown(bad.example)}: taken as sRGB"
        )


def _pipeline(
    request: Request,
    layout: Plan,
    making: Making,
    outcomes: Outcomes,
    journals: Journals,
    remade: Remade,
    summary: DeriveSummary,
    progress: Progress,
) -> Pipeline:
    progress.phase("derive", len(layout.numbers), "images")
    rooms = {} if request.batch_size else machine.rooms(making.encoders)  # once models are loaded
    return Pipeline(
        partial(
            prepare.read,
            encoders=making.encoders,
            fit=request.fit,
            colours=making.colours(),
            recipe=request.store.recipe,
        ),
        Batcher(making.encoders, request.batch_size or BATCH_SIZE, progress, rooms),
        Committer(
            store=request.store,
            journal=journals.records,
            facts=journals.facts,
            fits=making.fits(),
            renewed=making.renewed,
            remade=remade,
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
