"""A run of build: plan, make the shards on all devices, publish them."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import msgspec
import xxhash

from shardwright.building import finish, state
from shardwright.building.commits import FOLDER, Commits, DirectCommits
from shardwright.building.outcome import Outcome, announce_plan, predict, save_ledger, summarize
from shardwright.building.planning import planned
from shardwright.building.request import Made, Request
from shardwright.building.summary import BuildSummary
from shardwright.building.work import Builder, Work
from shardwright.comparing.parts import find_copies
from shardwright.deriving.encoding import Encoding
from shardwright.deriving.pipeline import REACH
from shardwright.deriving.recipe import view_of
from shardwright.deriving.results import Results
from shardwright.engine import DeviceEngine, Engine
from shardwright.engine.devices import Devices
from shardwright.engine.local import Local, cores
from shardwright.errors import (
    LockedError,
    NoSpaceError,
    StorageError,
    TooManyFailuresError,
    UsageError,
)
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.shards.format.moving import sync_stage
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import local
from shardwright.store.store import is_store


def run(request: Request, progress: Progress) -> BuildSummary:
    """Plan, make what is not there yet, and sum it up."""
    started, output = time.monotonic(), request.output
    place_at(output).require_writable()
    if not request.dry_run:
        with suppress(StorageError):  # it may not be allowed, and nothing depends on it
            place_at(output).abandon()
    if is_store(output):
        raise UsageError("is a store", path=output, fix="give another --output-dir")
    with ExitStack() as stack:
        engine, devices = _engines(request, stack, progress)
        made, outcome = planned(request, engine, devices, stack, progress)
        if outcome.finished:
            outcome.entries = finish.entries(outcome.places)
            if not request.dry_run:
                # What a kill in the last moment has left.
                finish.clear(output, outcome.places, outcome.plan.digest)
            return summarize(outcome, started)
        announce_plan(outcome, progress)
        builder = _builder(devices, made, outcome)
        found = builder.commits.found(outcome.layout.shards)  # by an interrupted run
        kept = {n: commit.shard.bytes for n, commit in found.items() if commit.shard}
        if outcome.layout.shards and not request.ignore_space:
            try:
                needed = outcome.bytes_needed - sum(kept.values())
                place_at(output).require_space("the shards need about", needed)
            except NoSpaceError as error:
                if not request.dry_run:
                    raise
                outcome.summary.obstacle = outcome.summary.obstacle or str(error)
        if request.dry_run:
            outcome.summary.kept_shards = len(kept)
            if devices.is_here:
                predict(outcome, builder, devices.names, kept.keys(), progress)
        elif outcome.layout.shards:
            _build(devices, builder, outcome, progress)
        else:
            save_ledger(outcome)
            if outcome.plan.append:
                for place in outcome.places:
                    finish.remember(place.folder, outcome.plan)
                finish.end(output, outcome.places, outcome.plan)
        summary = summarize(outcome, started)
        if summary.parts and not request.dry_run:
            summary.copies = find_copies(output, progress)
        return summary


def _engines(request: Request, stack: ExitStack, progress: Progress) -> tuple[Engine, DeviceEngine]:
    """Give where images are measured, and where they are encoded; check that all can work there."""
    if request.ray is None:
        return Local(cores()), Devices(request.devices)
    cluster = stack.enter_context(request.ray.connect(progress.warn))
    cluster.require_same("recipe", partial(_digest, request.recipe))
    if not request.dry_run:
        cluster.require_shared(request.output)
    cluster.require_readable([request.again.shards.folder] if request.again else request.inputs)
    return cluster.tasks, cluster


def _digest(recipe: Recipe) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(recipe, order="sorted"))


def _builder(devices: DeviceEngine, made: Made, outcome: Outcome) -> Builder:
    """Give what each device does."""
    request, asked, places = outcome.request, outcome.plan, outcome.places
    recipe, count, layout = asked.recipe, len(devices.names), outcome.layout
    typical = layout.samples // max(1, len(layout.shards))  # samples of a shard
    several = count > 1 or not devices.is_here
    views = {
        component: view_of(component, recipe, asked.made[component.name].settings)
        for component in request.make
        if component.source == "image"
    }
    making = Encoding(
        recipe=recipe,
        encoders=request.encoders,
        components=request.make,
        dtypes=made.dtypes,
        views=views,
        work=tuple(component for component in request.make if component.is_array),
        empties=tuple(component for component in request.make if component.source == "caption"),
        batch_size=request.batch_size,
        compile=request.compile,
        cores=devices.cores_each if several else cores(),
        # One of several devices must not draw all tasks only to see which pictures are alike.
        reach=min(REACH, max(1, typical // 2)) if several else REACH,
        waits=any(place_at(place).reads_are_requests for place in request.inputs),
        guarded=not several,
        loaded={} if several else made.encoders,
    )
    following = {component: view for component, view in views.items() if component.follows_picture}
    kind = Commits if place_at(request.output).can_replace else DirectCommits
    folder = state.plan_folder(request.output, asked.digest)
    commits = kind(asked.digest, folder, {place.part: place.folder for place in places})
    return Builder(
        making,
        Results(recipe, following, keeps=False),
        commits,
        asked.sha256 or any(place.has_sha256 for place in places),
        pictures=layout.samples // count if views else 0,
    )


def _finished(work: Work, builder: Builder, outcome: Outcome) -> str:
    """Count the shards that the next run will find, of some of which no message has come."""
    heard = sum(not commit.is_doubtful for commit in work.commits.values())
    if place_at(builder.commits.folder).reads_are_requests:  # it may be out of reach
        return f"at least {quantity(heard, 'shards')}"
    others = [shard for shard in outcome.layout.shards if shard.number not in work.commits]
    return quantity(heard + len(builder.commits.found(others)), "shards")


def _build(devices: DeviceEngine, builder: Builder, outcome: Outcome, progress: Progress) -> None:
    """Make all shards, then publish them."""
    request, asked, places = outcome.request, outcome.plan, outcome.places
    output, again = request.output, request.again
    files.make_folder(builder.commits.folder / FOLDER)
    for folder in dict.fromkeys([output, *(place.folder for place in places)]):
        if place_at(folder).can_replace:
            sync_stage(local(folder))
    state.save_plan(output, asked, outcome.inputs_folder)
    try:
        finish.begin(outcome)
    except LockedError:
        if not any(state.has_run(place.folder, asked.digest) for place in places):
            finish.clear(output, (), asked.digest, keep=())
        raise
    builder = replace(builder, commits=builder.commits.begun())
    work = Work(builder, devices, outcome.layout, asked.settings, progress)
    try:
        outcome.commits = work.run({p.part: p.first_numbers for p in places})
    except KeyboardInterrupt as interrupt:
        done = _finished(work, builder, outcome)
        interrupt.add_note(f"{done} finished; run the same command to continue")
        raise
    except (TooManyFailuresError, NoSpaceError) as error:
        fix = "make room and run the same command again, which keeps the finished shards"
        if isinstance(error, TooManyFailuresError):
            fix = (
                "fix the cause and run the same command again, which keeps the finished shards; "
                "then add images that you replaced with --append"
            )
        raise type(error)(error.what, path=error.path, fix=fix) from error
    outcome.report, outcome.summary.kept_shards = work.report, work.kept
    builder.commits.finalize(outcome.commits)
    finish.publish_all(outcome, {**(again.empties if again else {}), **work.empties}, progress)
