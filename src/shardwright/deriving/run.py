"""A run of derive, step by step: look, compare, plan, and then work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import to_builtins

from shardwright.deriving import (
    announce,
    generations,
    images,
    sources,
)
from shardwright.deriving.captions import CaptionFiles
from shardwright.deriving.changes import Changes, first_ids, unknown
from shardwright.deriving.changes import find as find_changes
from shardwright.deriving.decoders import Heads
from shardwright.deriving.encoding import DeviceEncoder, Encoding
from shardwright.deriving.inventory import Inventory
from shardwright.deriving.outcomes import Outcomes, write_failures
from shardwright.deriving.pipeline import Report
from shardwright.deriving.plan import Plan
from shardwright.deriving.prepare import Array
from shardwright.deriving.recorded import Moves, with_ids
from shardwright.deriving.request import Journals, Request, is_begun, open_store
from shardwright.deriving.results import Committer
from shardwright.deriving.settings import EncoderSettings
from shardwright.deriving.sources import Source
from shardwright.deriving.summary import ComponentSummary, DeriveSummary, Trial
from shardwright.deriving.workers import Publisher, Worker
from shardwright.engine.devices import Devices, alone
from shardwright.engine.local import cores
from shardwright.errors import NoSpaceError, SourceChangedError, StorageError
from shardwright.interrupts import check
from shardwright.progress import Progress, quantity
from shardwright.storage import files
from shardwright.storage.local import LocalPlace
from shardwright.storage.paths import absolute
from shardwright.store import paths, renames
from shardwright.store.arrays import write_arrays


def run(request: Request, progress: Progress) -> DeriveSummary:
    """Do what was asked for, and sum it up."""
    started = time.monotonic()
    store = request.store
    request.require_place()
    found = sources.find(request.images, progress)
    announce.captions(request, progress)
    given = CaptionFiles(request.captions, found, store.recipe) if request.captions else None
    request.require_same_ids()
    # A new store is made when the work begins: a run that cannot begin leaves no trace.
    new = not is_begun(store)
    with ExitStack() as stack:
        journals = None if new else stack.enter_context(open_store(request, progress))
        if request.discard:
            _discard(request, progress)
        folder = str(request.images)
        other_ids = request.are_ids_changed
        found = with_ids(found, folder, store, given, keep=not other_ids)
        below = absolute(str(request.prune_below)) if request.prune_below else None
        changes = find_changes(found, folder, store, progress, by_path=other_ids, also=below)
        found = changes.with_recorded_ids(found)
        if request.prune:
            changes = replace(changes, unknown=unknown(found, store))
        announce.kept_ids(found, given, store.recipe, progress)
        if request.renames and not new:
            _rename(request, found, changes, progress)
        inventory = Inventory(
            found,
            store,
            given,
            progress,
            recompute=request.recompute,
            update=request.update,
            # In a dry run, in which they are renamed only here.
            renamed=changes.renamed if request.dry_run and request.renames else {},
            first_ids={} if request.renames else first_ids(changes, found, store),
        )
        settings = EncoderSettings(request, inventory)
        for part in given.parts if given else ():
            announce.unused_rows(part, progress)
        announce.undecided(changes, request, progress)
        settings.compare()
        outcomes, heads = Outcomes(), stack.enter_context(Heads())
        with images.strict():
            layout = Plan(settings, outcomes, progress, heads, changes.moves)
        if settings.generation is not None and not request.drop_failed:
            settings.generation.require_given({source.image_id for source in found})
        # A record needs all masks, also those of components that are not asked for.
        masked = [c for c in store.recipe.captions if c.mask or c in request.components]
        settings.load([*layout.work, *(masked if layout.texts else ())])
        empties = settings.load_for_empty(layout.work)
        with images.strict():
            summary = _planned(layout, outcomes, changes)
        announce.work(summary, layout, changes, progress)
        if layout.work:
            announce.odd_buckets(store.recipe, progress)
        if not request.renames:
            announce.not_renamed(changes.names(found), progress)
        # A trial finds out what all images need, so it is no reason to stop if that is too much.
        if not (request.ignore_space or request.trial):
            try:
                _require_room(settings, summary.bytes_needed)
            except NoSpaceError as error:
                if not request.dry_run:
                    raise
                summary.obstacle = str(error)
        if not request.dry_run:
            encoding = settings.encoding(layout.work, empties)
            device: DeviceEncoder | Encoding = encoding
            if len(request.devices) == 1:
                with alone(settings.device):
                    device = DeviceEncoder(encoding, request.devices[0], progress)
            if new and is_begun(store):
                LocalPlace(store.folder).require_unlocked()
                raise SourceChangedError(
                    "another run has written here", path=store.folder, fix="run again"
                )
            journals = journals or stack.enter_context(open_store(request, progress))
            assert journals is not None
            if request.remember:
                paths.remember(request.images, request.captions_file, store)
            # Else none of its images is in the store, or it is unknown where they were.
            elif (layout.numbers or outcomes.complete) and not changes.originals:
                paths.note(request.images, store)
            made = {found[number].image_id for number in layout.numbers}
            for known in changes.relocations(store):
                if known.image_id not in made:  # else its facts are written with its arrays
                    journals.facts.append(to_builtins(known))
            _work(layout, outcomes, changes, journals, device, heads, summary, progress)
            _count_updated(summary, outcomes)
    summary.failed, summary.failed_by_reason = len(outcomes.failures), outcomes.by_reason()
    summary.require_sum()
    summary.unapplied_profiles = outcomes.profiles
    announce.profiles(summary, progress)
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _rename(request: Request, found: list[Source], changes: Changes, progress: Progress) -> None:
    """Rename in the store what was renamed, and remove what is gone."""
    removed = changes.gone if request.prune else {}
    ids = request.store.recipe.ids if request.are_ids_changed else None
    if not (changes.renamed or removed or ids):
        return
    # A run that is refused for its settings changes nothing.
    EncoderSettings(request, Inventory([], request.store, None, Progress())).compare()
    if changes.renamed or removed:
        renames.require_only(request.store)
    announce.pruning(sorted(removed.values()), progress, request.dry_run)
    if request.dry_run:
        return
    names = {
        old: renames.Name(found[number].image_id, found[number].path)
        for old, number in changes.renamed.items()
    }
    renames.Renames(names, removed, ids).apply(request.store)


def _discard(request: Request, progress: Progress) -> None:
    """Discard an unfinished recompute, whatever its settings are."""
    begun, made = generations.unfinished(request.store)
    if begun:
        verb = "would discard" if request.dry_run else "discarding"
        count = quantity(made, "images")
        progress.say(f"{verb} the unfinished {generations.name_of(begun)} ({count})")
    if not request.dry_run:
        generations.discard(request.store)


def _planned(layout: Plan, outcomes: Outcomes, changes: Changes) -> DeriveSummary:
    """Sum up what is about to be done."""
    settings, inventory = layout.settings, layout.inventory
    request, needed = settings.request, layout.bytes_needed()
    replaced = layout.replaced_captions
    gone = changes.gone | changes.undecided | ({} if request.renames else changes.absent)
    pruned = changes.gone if request.prune else {}
    elsewhere = (c for c in request.store.recipe.components if c.source == "elsewhere")
    renamed = changes.names(inventory.sources) if request.renames else {}
    return DeriveSummary(
        images_found=len(inventory.sources),
        derived=len(layout.numbers),
        already_complete=outcomes.complete,
        failed=len(outcomes.failures),
        dry_run=request.dry_run,
        derived_dir=str(request.store.folder),
        components={
            component.name: ComponentSummary(
                there=inventory.count(component),
                to_make=layout.to_make.get(component, 0),
                bytes_needed=needed.get(component, 0),
                settings=settings.settings.get(component),
                elsewhere=component.source == "elsewhere",
            )
            for component in (*request.components, *elsewhere)
        },
        failed_by_reason=outcomes.by_reason(),
        left_out=outcomes.left_out,
        kept_captions=len(inventory.other_captions) - replaced,
        replaced_captions=replaced,
        unused_rows=inventory.captions.unused() if inventory.captions else {},
        caption_rows=inventory.captions.summed() if inventory.captions else None,
        changed_images=layout.changed,
        gone_images=sorted(gone[old] for old in gone.keys() - pruned.keys()),
        updated_images=layout.updated["image"],
        updated_captions=layout.updated["caption"],
        updated_columns=layout.updated_columns,
        renamed=renamed,
        pruned=sorted(pruned.values()),
        bytes_needed=sum(needed.values()),
        free_bytes=LocalPlace(request.store.folder).free_bytes(),
        device=settings.device,
    )


def _require_room(settings: EncoderSettings, needed: int) -> None:
    """Raise if the disk has less room than the arrays need; old ones stay until the swap."""
    folders = [str(settings.store.arrays(component)) for component in settings.recomputed]
    instead = f"delete {' and '.join(folders)} to do without the old arrays, "
    instead *= bool(folders) and not settings.is_update
    LocalPlace(settings.store.folder).require_space("the arrays need about", needed, instead)


def _work(
    layout: Plan,
    outcomes: Outcomes,
    changes: Changes,
    journals: Journals,
    device: DeviceEncoder | Encoding,
    heads: Heads,
    summary: DeriveSummary,
    progress: Progress,
) -> None:
    """Make what is missing, here or on several devices; put what was recomputed in use."""
    settings, inventory = layout.settings, layout.inventory
    request, generation = settings.request, settings.generation
    if journals.records.recovered is not None:
        summary.recovered_records = journals.records.recovered.records
    # The new time and place of unchanged files, so that they are not read again. A generation
    # replaces the facts of its images before these are merged.
    touched = inventory.touched.keys() - inventory.problems.keys()
    for number in sorted(touched.difference(layout.numbers) if generation else touched):
        check()
        journals.facts.append(to_builtins(inventory.facts(number)))
    journals.facts.commit()
    request.store.make_folders()
    settings.begin(layout.work)
    count = min(len(layout.numbers), request.trial or len(layout.numbers))
    left = layout.numbers[count:]
    kept = _failures_kept(settings, outcomes, changes.moves, left)
    with generation.opened() if generation else nullcontext(), kept:
        progress.phase("derive", count, "images")
        target = generation or journals
        committer = Committer(settings, target.records, target.facts, outcomes, summary, progress)
        samples, pictures = islice(layout.samples(), count), min(count, layout.pictures)
        if isinstance(device, DeviceEncoder):
            with alone(settings.device):
                write_empties(settings, device.empties())
                for _ in device.run(samples, committer, count, pictures, heads):
                    pass
            report = device.report()
        else:
            keep = partial(write_empties, settings)
            worker = Worker(device, committer.sealer, pictures)
            devices = Devices(request.devices)
            publisher = Publisher(committer, devices, keep, progress, request.batch_size)
            report = publisher.run(worker, samples, count)
    summary.derived, summary.already_complete = outcomes.derived, outcomes.complete
    for name, (inputs, batches) in report.fills.items():
        summary.components[name].batch_fill = round(inputs / batches, 2)
    summary.encoder_waited = round(report.idle, 4)
    if request.trial and count:
        summary.trial = _forecast(report, summary, count, len(left), len(request.devices))
    if generation is not None:
        missing = generation.missing()
        for component, image_ids in missing.items():
            summary.components[component.name].not_recomputed = len(image_ids)
        if request.drop_failed or not (left or any(missing.values())):
            generation.swap()
            if not generation.is_update:
                summary.swapped = [component.name for component in generation.entries]
        else:
            summary.unfinished = [component.name for component in generation.entries]


def _forecast(report: Report, summary: DeriveSummary, tried: int, left: int, devices: int) -> Trial:
    """Reckon what the images that are left will take, from what those that were tried took."""
    made = max(summary.derived, 1)  # those that failed were not encoded
    read = report.read / tried
    encode = {name: took / made for name, took in report.encode.items()}
    reading, encoding = read / cores(), sum(encode.values()) / devices
    # A device works while the next images are read; a CPU has to do both.
    on_cpu = report.memory.keys() <= {"cpu"}
    seconds = left * (reading + encoding if on_cpu else max(reading, encoding))
    written = sum(part.bytes_written for part in summary.components.values())
    return Trial(
        images=summary.derived,
        left=left,
        read=round(read, 6),
        encode={name: round(took, 6) for name, took in encode.items()},
        memory=report.memory,
        seconds_left=round(seconds, 3),
        bytes_left=max(0, summary.bytes_needed - written) if left else 0,
    )


def write_empties(settings: EncoderSettings, arrays: Mapping[str, Array]) -> None:
    """Write what is missing of the empty caption."""
    group: list[tuple[Path, Array | bytes]] = []
    for component in settings.store.recipe.captions:
        store = settings.store_of(component)
        group += [(store.empty(name), arrays[name]) for name in component.members if name in arrays]
    if any(not path.exists() for path, _ in group):
        for path, _ in group:
            files.make_folder(path.parent)
        write_arrays(group)


def _count_updated(summary: DeriveSummary, outcomes: Outcomes) -> None:
    """Count images whose old arrays stay in use as changed, and not as updated."""
    failed = {failure.image_path for failure in outcomes.failures}
    if summary.unfinished:  # nothing is in use yet
        failed.update(summary.updated_images, summary.updated_captions)
    changed = [path for path in summary.updated_images if path in failed]
    summary.changed_images = sorted({*summary.changed_images, *changed})
    summary.updated_images = [path for path in summary.updated_images if path not in failed]
    captions = [path for path in summary.updated_captions if path not in failed]
    kept = len(summary.updated_captions) - len(captions)
    summary.kept_captions, summary.replaced_captions = (
        summary.kept_captions + kept,
        summary.replaced_captions - kept,
    )
    summary.updated_captions = captions
    columns = summary.updated_columns.items()
    summary.updated_columns = {path: names for path, names in columns if path not in failed}


@contextmanager
def _failures_kept(
    settings: EncoderSettings, outcomes: Outcomes, moves: Moves, left: Iterable[int]
) -> Iterator[None]:
    """Write the failures to their file, however the work ends; those left are not looked at."""
    names = [component.name for component in settings.request.components]
    try:
        yield
    except BaseException as error:
        with suppress(StorageError):  # the first error is the one to report
            seen = {failure.image_path for failure in outcomes.failures}
            write_failures(settings.store, outcomes, moves, seen, names)
        if isinstance(error, KeyboardInterrupt):
            saved = quantity(outcomes.derived, "images")
            error.add_note(f"{saved} saved. Run the same command to continue")
        raise
    seen = {source.path for source in settings.inventory.sources}
    seen.difference_update(settings.inventory.sources[number].path for number in left)
    write_failures(settings.store, outcomes, moves, seen, names)
