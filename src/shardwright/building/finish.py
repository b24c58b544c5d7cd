"""The end of a build: shards get their numbers and names, and the manifest is written.

All of it follows from the plan and the commits, and can be repeated after a kill at any step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET

from shardwright.building import built, outcome
from shardwright.building.commits import MOVING_NAME, Commit
from shardwright.building.outcome import Outcome
from shardwright.building.plan import PLAN_NAME, PlanFile
from shardwright.building.remembered import NOTED
from shardwright.building.rows import INPUTS_NAME
from shardwright.errors import DamageError, LockedError, SourceChangedError
from shardwright.layout import STATE_FOLDER
from shardwright.packing import publish
from shardwright.packing.start import Start
from shardwright.progress import Progress
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import ShardEntry, Unfinished
from shardwright.shards.format.moving import make_folders, move_shard, stage_of
from shardwright.shards.format.names import bucket_folder, existing_buckets, shard_name
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, local

_KEPT = (PLAN_NAME, INPUTS_NAME)
_RESTORE = "restore a copy, or build again with --overwrite"


def begin(outcome: Outcome) -> None:
    """Note in each place that a build has begun; in none if another run has begun in one."""
    plan, begun = outcome.plan, list[Location]()
    planned = {shard.part for shard in outcome.layout.shards}
    for place in outcome.places:
        if not place.finished:
            files.make_folder(place.folder / STATE_FOLDER)
            try:
                if manifest.save_unfinished(place.folder, _note(outcome, place, planned)):
                    begun.append(place.folder)
            except (LockedError, SourceChangedError):
                for folder in begun:
                    manifest.remove_unfinished(folder, plan.digest)
                raise


def _note(outcome: Outcome, place: Start, parts: Iterable[str | None]) -> Unfinished:
    """Describe what a build does in a place; ``parts`` are those that get shards."""
    plan = outcome.plan
    return Unfinished(
        append=plan.append,
        plan=plan.digest,
        settings=msgspec.structs.replace(plan.settings, part=place.part),
        replaces=sorted(place.replaced),
        base=place.base,
        parts={part: plan.digest for part in parts if part is not None} or UNSET,
        build=_made_from(plan),
    )


def publish_all(found: Outcome, empties: Mapping[str, bytes], progress: Progress) -> None:
    """Give all shards their names and write the manifests.

    ``empties`` is the empty caption, by the suffix of its members.
    """
    plan, places = found.plan, found.places
    progress.phase("publish", len(places), "folders")
    outcome.save_ledger(found)
    paths = {place.part: _numbered(place, found) for place in places}
    for place in places:
        found.entries[place.part] = _publish(found, place, paths, empties)
        progress.advance(1)
    if plan.append:
        before = (
            image
            for place in places
            for image in built.load(place.folder, [each.plan for each in place.base.runs])
        )
        new = (image for commit in found.commits.values() for image in commit.images)
        found.summary.under_other_ids = built.repeated(new, before)
    end(found.request.output, places, plan)


def _numbered(place: Start, found: Outcome) -> dict[int, str]:
    """Give the paths of the shards that were made in a place, by their tasks, without gaps.

    At a URL they have their names already, and a task without a shard leaves a gap.
    """
    numbers, paths = dict(place.first_numbers), dict[int, str]()
    moves = place_at(place.folder).can_replace
    for shard in found.layout.shards:
        if shard.part == place.part and found.commits[shard.number].shard is not None:
            number = numbers.get(shard.bucket, 0)
            numbers[shard.bucket] = number + 1
            path = f"{bucket_folder(shard.bucket)}/{shard_name(number)}"
            paths[shard.number] = path if moves else shard.path
    return paths


def _publish(
    found: Outcome,
    place: Start,
    all_paths: Mapping[str | None, Mapping[int, str]],
    empties: Mapping[str, bytes],
) -> list[ShardEntry]:
    """Move the shards of a place out of the stage, if they are in one, and write its manifest."""
    folder, base, plan, commits = place.folder, place.base, found.plan, found.commits
    if place.finished:
        return _last_entries(folder)
    if not place_at(folder).can_replace:
        _remove_left(place, found)
    if not any(commit.shard for commit in commits.values()):
        # What was there stays, even with --overwrite.
        remember(folder, plan)
        manifest.remove_unfinished(folder, plan.digest)
        return []
    paths = all_paths[place.part]
    made = [(commits[n], path) for n, path in paths.items()]  # each with a shard
    if place_at(folder).can_replace:
        entries = _moved(local(folder), place, made)
    else:
        entries = [commit.shard for commit, _ in made if commit.shard]
        listed = {entry.path for entry in (*base.shards, *entries)}
        for bucket in existing_buckets(folder):  # of a task in place of inputs that no longer fail
            publish.remove_shards(folder, bucket, keep=listed)
    plans = [run.plan for run in base.runs]
    if entries:
        again = found.request.again
        copied = again.shards.images(place.part) if again else []
        lines = (image.line for number in paths for image in commits[number].images)
        built.save(folder, plan.digest, [*copied, *lines])
        plans.append(plan.digest)
    note = _note(found, place, [part for part, those in all_paths.items() if those])
    left = outcome.counts(found.left)
    run = publish.run_of(note, found.inputs, left, entries, plan.made)
    sha256 = plan.sha256 or place.has_sha256
    publish.finish(folder, base, run, entries, plan.recipe, empties, sha256=sha256)
    built.forget(folder, plans)
    manifest.remove_unfinished(folder, plan.digest)
    return entries


def _remove_left(place: Start, found: Outcome) -> None:
    """Remove at a URL what workers that have died have left of tasks without a shard."""
    for shard in found.layout.shards:
        commit = found.commits[shard.number]
        if shard.part == place.part and commit.shard is None:
            for name in commit.etags:
                files.remove(place.folder / name)


def _moved(folder: Path, place: Start, made: Sequence[tuple[Commit, str]]) -> list[ShardEntry]:
    """Move shards out of the stage, in place of those that are replaced."""
    stage = stage_of(folder)
    staged = [(stage / commit.attempt, commit.shard, path) for commit, path in made if commit.shard]
    moved = {path for attempt, entry, path in staged if not (attempt / entry.path).exists()}
    stay = {*(entry.path for entry in place.base.shards), *moved}
    if place.replaced:
        manifest.remove_manifest(folder)
        for bucket in existing_buckets(folder):
            publish.remove_shards(folder, bucket, keep=stay)
    make_folders(folder, [path for _, path in made])
    if made:
        # What moves must not get lost with a folder that a killed run did not sync. And the removal
        # of old shards must last: if a power cut brought one back, the next run would take the new
        # index of that name for the old one's, and remove both.
        publish.make_durable(folder)
        files.write(stage / MOVING_NAME, b"")  # from now on, what is not in the stage has moved
    entries = [move_shard(attempt, folder, entry, path) for attempt, entry, path in staged]
    publish.remove_leftovers(folder)  # also what a killed run did not remove of old shards
    publish.remove_empty_buckets(folder)
    return entries


def entries(places: Sequence[Start]) -> dict[str | None, list[ShardEntry]]:
    """Give the shards that a finished plan has made, by part; raise if a file or part is gone."""
    found = {p.part: _last_entries(p.folder) for p in places if p.finished}
    for place in places:
        entries = found.get(place.part, [])
        there = place_at(place.folder).sizes([entry.path for entry in entries])
        for entry in entries:
            if there.get(entry.path) != entry.bytes:
                path = place.folder / entry.path
                raise DamageError("is missing or incomplete", path=path, fix=_RESTORE)
        last = manifest.load_manifest(place.folder) if place.finished else None
        made = last.runs[-1].parts or {} if last else {}
        for other in places:
            if not other.finished and other.part in made:
                raise DamageError("is missing or incomplete", path=other.folder, fix=_RESTORE)
    return found


def _last_entries(folder: Location) -> list[ShardEntry]:
    done = manifest.load_manifest(folder)
    assert done is not None
    return [entry for entry in done.shards if entry.run == len(done.runs) - 1]


def _made_from(plan: PlanFile) -> dict[str, object]:
    """Say what a plan was made from."""
    if plan.source is not None:
        return {"from": plan.source[0]}
    note: dict[str, object] = {"inputs": [listing.path for listing in plan.listings]}
    return note | _captions(plan)


def remember(folder: Location, plan: PlanFile) -> None:
    """Note the captions files of an append that has built nothing, for the next one."""
    done = manifest.load_manifest(folder) if plan.append else None
    if done is None or not (before := done.runs[-1].build):  # or it was packed
        return
    note = {name: each for name, each in before.items() if name != NOTED} | _captions(plan)
    if note != before:
        last = msgspec.structs.replace(done.runs[-1], build=note)
        done = msgspec.structs.replace(done, runs=[*done.runs[:-1], last])
        manifest.save_manifest(folder, done, adds=False)


def _captions(plan: PlanFile) -> dict[str, object]:
    return {NOTED: msgspec.to_builtins(plan.remembered)} if plan.remembered else {}


def end(output: Location, places: Sequence[Start], plan: PlanFile) -> None:
    """Remove what only an unfinished plan needs; of an append, which always plans again, all."""
    clear(output, places, plan.digest, keep=() if plan.append else _KEPT)


def clear(
    output: Location, places: Sequence[Start], plan: str, keep: Collection[str] = _KEPT
) -> None:
    """Remove the commits and what else is in the stages; the plan stays."""
    own = stage_of(output)
    if not place_at(output).can_replace:
        place_at(own / plan).remove_all(keep)
        return
    for stage in dict.fromkeys([*(stage_of(place.folder) for place in places), own]):
        place_at(stage).remove_all(keep if stage == own else ())
