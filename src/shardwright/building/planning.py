"""From a request to a plan: the one that was stored, if it is the same, or a new one.

What is only needed to plan, such as the list of all images, is gone when the work begins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import xxhash
from msgspec import UNSET

from shardwright.building import finish, inputs, plan, remembered, rows, state
from shardwright.building.outcome import Outcome
from shardwright.building.request import Made, Request, describe, load_encoders
from shardwright.building.summary import BuildSummary
from shardwright.deriving import announce, captions
from shardwright.deriving.outcomes import NO_CAPTION
from shardwright.deriving.settings import device_text
from shardwright.engine import DeviceEngine, Engine
from shardwright.engine.local import Local, cores
from shardwright.errors import (
    DamageError,
    InputMissingError,
    ProvenanceError,
    ShardExistsError,
    UsageError,
)
from shardwright.packing import splits, start
from shardwright.packing.again import Asked, Last
from shardwright.packing.again import announce as announce_kept
from shardwright.packing.choice import FLAGS, Choice, read_lists
from shardwright.packing.splits import find_targets, overwriting
from shardwright.packing.start import Target
from shardwright.progress import Progress, quantity
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.manifest import PackSettings, Run, Unfinished
from shardwright.shards.format.moving import stage_of
from shardwright.storage import files
from shardwright.storage.paths import shown_near
from shardwright.storage.place import place_at
from shardwright.storage.urls import is_within, local, location, relative_name
from shardwright.summary import Count
from shardwright.text import shown

_OTHER = "another --output-dir"


def planned(
    request: Request,
    engine: Engine,
    devices: DeviceEngine,
    stack: ExitStack,
    progress: Progress,
) -> tuple[Made, Outcome]:
    """Plan, or find the plan that is there; ``stack`` holds the locks until the end of the run."""
    output, replaces = request.output, place_at(request.output).can_replace
    found = inputs.find(request.inputs, progress)
    for each in found:
        if is_within(output, location(each.path)):  # where the next run would find the shards
            what = f"is inside {shown(each.path)}, which is an input"
            raise UsageError(what, path=output, fix="give another --output-dir")
    request, noted = _with_captions(request, progress)
    given = _captions(request)
    if devices.is_here:
        made = load_encoders(request)
        device = device_text(devices.names, list(made.encoders.values()))
    else:  # a worker is asked how components are made
        with closing(devices.run(describe, [replace(request, loaded={}, ray=None)])) as answers:
            made = next(answers)
        device = f"{quantity(len(devices.names), 'workers')} of the cluster"
    if not request.dry_run:
        stack.enter_context(place_at(output).lease())
    asked, choice, targets = _asked(request, found, made, noted, progress)
    for target in targets:
        if target.folder != output and not request.dry_run:
            stack.enter_context(place_at(target.folder).lease())
    folder = stage_of(local(output)) if replaces else _temporary(stack)
    stored, finished = _stored(request, asked, targets, folder)
    summary = BuildSummary(dry_run=request.dry_run, output_dir=str(output), device=device)
    places = state.places(targets, stored, request.way)
    known = {} if request.again else state.known(places)
    if stored is not None:
        summary.changed_inputs = _changed(stored, asked, found, folder, progress)
    else:
        try:
            for place in places:
                state.require_free(place, asked, request.way)
                state.require_same_kind(place, asked.recipe, asked.made)
        except (ShardExistsError, ProvenanceError) as error:
            if not request.dry_run:
                raise
            summary.obstacle = str(error)
        if request.dry_run:
            folder = _temporary(stack)
        elif replaces:
            finish.clear(output, places, "")  # or commits of an equal plan would count
        count = rows.write(found, given, asked.recipe, known, folder, engine, progress)
        announce.unused_rows(given, progress)
        announce.odd_buckets(asked.recipe, progress)
        if given is not None:
            summary.unused_rows, summary.caption_rows = given.unused(), given.summed()
        asked = msgspec.structs.replace(asked, known=count, inputs=rows.checksum(folder))
    # The ids of the samples that are there are needed for the layout, and then no more.
    starts = [replace(place, packed=()) for place in places]
    if request.again is not None:
        summary.copied = [component.name for component in request.again.copying.kept]
        summary.source = str(request.again.shards.folder)
        layout: plan.Plan = request.again.layout()
    else:
        there = ((each.part, i) for each in places for one in each.packed for i in one.ids)
        staying = splits.find_staying(choice.settings.split, choice.groups, there, choice.first_ids)
        staying.announce(output, request.way, progress)
        choice = replace(choice, staying=staying)
        numbers = {place.part: place.first_numbers for place in places}
        layout = plan.read(folder, asked.recipe, choice, known, numbers, Local(cores()), progress)
    outcome = Outcome(request, stored or asked, summary, folder, starts, layout, finished)
    if stored is None:
        _require_a_caption(outcome)
    return made, outcome


def _temporary(stack: ExitStack) -> Path:
    """Make a local folder for the inputs of a plan, for the time of the run."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory()))


def _stored(
    request: Request, asked: plan.PlanFile, targets: Sequence[Target], folder: Path
) -> tuple[plan.PlanFile | None, bool]:
    """Give the stored plan, if it is the one that is asked for; and whether it is finished.

    ``folder`` is the local folder of its inputs.
    """
    output, replaces = request.output, place_at(request.output).can_replace
    try:
        stored = state.load_plan(output)
        if stored is not None and not replaces:
            with suppress(FileNotFoundError):  # reported as damage
                state.fetch_inputs(output, stored, folder)
        if stored is not None and state.is_interrupted(output):
            state.require_same(output, stored, asked, folder)
            return stored, False
    except (UsageError, DamageError):
        if request.way != "overwrite":
            raise
        return None, False  # it starts over
    if stored is None:
        return None, False
    # Never with --append: it looks again at all that is not in the shards, which may be fixed now.
    # And one that found nothing new has written down other inputs.
    if (
        request.way is None
        and stored.listings == asked.listings
        and not state.changes(stored, asked)
        and any(state.has_run(target.folder, stored.digest) for target in targets)
        and rows.checksum(folder) == stored.inputs
    ):
        return stored, True
    if stored.append and not (replaces or request.dry_run):
        finish.end(output, (), stored)  # what a kill in the last moment has left
    return None, False


def _require_a_caption(outcome: Outcome) -> None:
    """Raise if all images lack a caption; nothing of the plan is kept then."""
    output = outcome.request.output
    left = [each for each in outcome.layout.left if each.reason == NO_CAPTION]
    if left and len(left) == outcome.inputs:
        if place_at(output).can_replace and not outcome.request.dry_run:
            finish.clear(output, outcome.places, "", keep=())
        what = f"has no caption ({left[0].detail}), and no other image has one"
        fix = "give --captions FILE, or write name.txt beside name.jpg"
        raise InputMissingError(what, path=left[0].path, fix=fix)


def _with_captions(
    request: Request, progress: Progress
) -> tuple[Request, list[remembered.Remembered]]:
    """Complete a request by the captions file of earlier builds; give what is to be noted of it."""
    output, given = request.output, request.captions
    known = remembered.noted(state.latest(output)) if request.way else []
    found = remembered.in_force(known, request.inputs, output)
    noted = [] if request.forget_captions else found
    if given is not None:
        found = [old for old in known if any(old.is_for(each, output) for each in request.inputs)]
        noted = [remembered.Remembered.of(given, each, output) for each in request.inputs]
    elif noted:
        given = remembered.file_of(noted, output)
        progress.say(f"captions: {shown_near(str(given))}, as in the last build")
    elif known and not request.forget_captions:
        before = remembered.spelt(known, output)
        progress.say(f"captions: none given; the last build read {before}")
    kept = [each for each in known if each in noted or each not in found]
    kept = kept if request.way == "append" else []
    return replace(request, captions=given), list(dict.fromkeys([*kept, *noted]))


def _captions(request: Request) -> captions.Captions | None:
    if request.captions is not None:
        return captions.read(request.captions, request.inputs[0], request.recipe)
    if request.recipe.ids == "captions" and request.again is None:
        raise UsageError("--ids captions without --captions", fix="give the file with image_id")
    return None


def _asked(
    request: Request,
    found: Sequence[inputs.Found],
    made: Made,
    noted: list[remembered.Remembered],
    progress: Progress,
) -> tuple[plan.PlanFile, Choice, list[Target]]:
    """Give the plan that is asked for, without its inputs; and the folders of its parts."""
    output, way, again = request.output, request.way, request.again
    split, targets = find_targets(output, request.settings, way, request.given)
    settings = msgspec.structs.replace(request.settings, split=split)
    earlier = start.current_run(target.folder for target in targets)
    if way is not None and earlier is not None:
        settings = _chosen_as(earlier, settings, request)
    choice, given = Choice(settings, request.recipe.selection), None
    if again is None:
        ways = with_layout("--overwrite", earlier.settings if earlier else None)
        choice = read_lists(settings, output, ways if place_at(output).can_replace else _OTHER)
    if way is not None and request.given is not None:
        last = Last(output, earlier, earlier.settings) if earlier else None
        flags = Asked(output, way, request.given, output)
        announce_kept(flags, last, choice.settings, targets, progress)
    if request.captions is not None:
        data = xxhash.xxh3_64_hexdigest(files.read(request.captions))
        given = [relative_name(request.captions, output), data]
    asked = plan.PlanFile(
        settings=choice.settings,
        recipe=request.recipe,
        made=made.entries,
        listings=[inputs.listing(each) for each in found],
        at=os.getcwd(),
        captions=given,
        append=way == "append",
        sha256=request.sha256,
        source=again.source(output) if again else None,
        components=again.components if again else None,
        groups=(None if again else splits.checksum(split, output)) or UNSET,
        remembered=noted or UNSET,
    )
    return asked, choice, targets


def _chosen_as(earlier: Run | Unfinished, own: PackSettings, request: Request) -> PackSettings:
    """Complete the settings by what excluded samples in the last run, unless it is dropped.

    All runs of a folder share their conditions, so that only --overwrite changes them.
    """
    before, given, output = earlier.settings, request.given or (), request.output
    if isinstance(earlier, Unfinished):  # what differs is reported where plans are compared
        return own.chosen_as(before, given)
    if not earlier.is_build:  # then lists of ids are named from the store, wherever it is
        lists = {name: getattr(own, name) for name in FLAGS if getattr(before, name)}
        missing = [FLAGS[n] for n, file in lists.items() if file is None and n not in given]
        if missing:
            flags = " and ".join(missing)
            what = f"was packed with {flags}, and only its store knows where that is"
            raise UsageError(what, path=output, fix=f"give {flags} again")
        before = msgspec.structs.replace(before, **lists)
    settings = own.chosen_as(before, given)
    was = before.conditions(output)
    if request.way == "append" and settings.conditions(output) != was:
        what = f"was {'built' if earlier.is_build else 'packed'} {start.spelt(was)}"
        ways = f"{overwriting(output)}, or " if place_at(output).can_replace else ""
        fix = f"give the same conditions, or {ways}{_OTHER}"
        raise UsageError(f"{what}, so nothing was written", path=output, fix=fix)
    return settings


def _changed(
    stored: plan.PlanFile,
    asked: plan.PlanFile,
    found: Sequence[inputs.Found],
    folder: Path,
    progress: Progress,
) -> dict[str, dict[str, Count]]:
    """Say what has changed in the inputs since the plan was made; the plan stays as it is."""
    now = zip(found, asked.listings, strict=True)
    changed = [each for each, listing in now if listing not in stored.listings]
    if not changed:
        return {}
    planned = (head.where for _, head in rows.heads(folder, Progress()))
    counted = inputs.differences(changed, planned)
    for path, counts in counted.items():
        listed = "; ".join(
            f"{quantity(count.count, 'files')} {kind}, for example {shown(count.example)}"
            for kind, count in counts.items()
        )
        progress.warn(
            f"{shown(path)}: changed since the plan was made ({listed}); going on with the "
            "plan. To add what is new, run it with --append afterwards"
        )
    return counted
