"""What earlier runs left in the output folder of a build, and so where this one starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from shardwright.building import built, rows
from shardwright.building.plan import PLAN_NAME, PlanFile
from shardwright.errors import (
    DamageError,
    LockedError,
    ProvenanceError,
    ShardExistsError,
    UsageError,
)
from shardwright.interrupts import check
from shardwright.packing import start
from shardwright.packing.plan import Packed
from shardwright.packing.splits import overwriting
from shardwright.packing.start import Start, Target, existing
from shardwright.recipes import Recipe
from shardwright.recipes.compare import differences
from shardwright.shards.format import consistency, manifest, records
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.moving import stage_of
from shardwright.shards.format.names import existing_buckets
from shardwright.shards.format.parts import parts_of, top_folder
from shardwright.storage import files
from shardwright.storage.local import LocalPlace
from shardwright.storage.paths import joined
from shardwright.storage.place import Place, place_at
from shardwright.storage.urls import Location
from shardwright.store import provenance

_OTHER = "another --output-dir"
_CHUNK = 1 << 23


def plan_folder(output: Location, plan: str) -> Location:
    """Give the folder of a plan; where no lock keeps two apart, each has its own."""
    stage = stage_of(output)
    return stage if place_at(output).can_replace else stage / plan


def current_folder(output: Location) -> Location | None:
    """Give the folder of the plan of the last build, which may not have finished."""
    if place_at(output).can_replace:
        return stage_of(output)
    last = latest(output)
    return plan_folder(output, last.plan) if last is not None and last.is_build else None


def latest(output: Location) -> manifest.Run | manifest.Unfinished | None:
    """Give the last run into a folder or its parts, which may not have finished."""
    return start.current_run(_folders(output))


def _folders(output: Location) -> list[Location]:
    """Give the output folder, and the parts below it if it is split."""
    return [output, *parts_of(output).values()]


def load_plan(output: Location) -> PlanFile | None:
    """Read the plan that is stored in an output folder, if there is one; raise if it is damaged."""
    folder = current_folder(output)
    if folder is None:
        return None
    path = folder / PLAN_NAME
    with files.explained(path), suppress(FileNotFoundError, NotADirectoryError):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = msgspec.json.decode(files.read(path), type=PlanFile)
            manifest.require_own_names(found.settings, path, _delete(output))
            return found
        raise DamageError("is damaged", path=path, fix=_delete(output))
    return None


def save_plan(output: Location, plan: PlanFile, inputs: Path) -> None:
    """Store a plan; at a URL also its inputs, which were written to a local folder."""
    folder = plan_folder(output, plan.digest)
    if not place_at(output).can_replace:
        _copy(LocalPlace(inputs), place_at(folder))
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    files.write(folder / PLAN_NAME, text + b"\n")


def fetch_inputs(output: Location, plan: PlanFile, inputs: Path) -> None:
    """Copy the inputs of a stored plan to a local folder, to read them."""
    _copy(place_at(plan_folder(output, plan.digest)), LocalPlace(inputs))


def _copy(source: Place, target: Place) -> None:
    with source.open(rows.INPUTS_NAME) as file, target.create(rows.INPUTS_NAME) as copy:
        for start in range(0, file.size, _CHUNK):
            check()
            copy.put(file.pread(start, _CHUNK))
        copy.seal(file.size)
    target.publish(rows.INPUTS_NAME)


def is_interrupted(output: Location) -> bool:
    """Whether a build was interrupted here."""
    last = latest(output)
    return isinstance(last, manifest.Unfinished) and last.is_build


def before(output: Location, way: str | None) -> tuple[Recipe | None, dict[str, provenance.Entry]]:
    """Give the recipe and the settings of the shards that are there, or of an interrupted build.

    Raise if a plan is damaged, unless it is replaced; and if there is no telling how shards were
    made that are to be added to.
    """
    try:
        if is_interrupted(output) and (plan := load_plan(output)) is not None:
            return plan.recipe, plan.made
    except DamageError:
        if way != "overwrite":
            raise
    later = [] if way == "append" else [DamageError]  # which is reported when the run starts
    for folder in _folders(output):
        with suppress(*later):
            if (done := manifest.load_manifest(folder)) is not None and done.shards:
                made = provenance.settings_in(done.runs[-1].provenance)
                return done.samples_of(), {n: provenance.Entry(s, "") for n, s in made.items()}
    return None, {}


def changes(stored: PlanFile, asked: PlanFile) -> list[str]:
    """Say in what the plan that is asked for differs from the one that is stored."""
    found = [f"{name} was {old} and is {new}" for name, old, new in _changed_flags(stored, asked)]
    found += differences(stored.recipe, asked.recipe)
    return [*found, *filter(None, [provenance.differences(stored.used, asked.used)[1]])]


def require_same(output: Location, stored: PlanFile, asked: PlanFile, inputs: Path) -> None:
    """Raise if an interrupted build was another one, or if its plan is damaged.

    ``inputs`` is the local folder that they are read from.
    """
    if found := changes(stored, asked):
        listed = "; ".join(found)
        if not place_at(output).can_replace:  # no lock tells whether it is running
            what = f"holds an unfinished build with other settings ({listed})"
            fix = f"wait until it has ended, run it as before, or give {_OTHER}"
            raise LockedError(what, path=output, fix=fix)
        what = f"holds an interrupted build with other settings ({listed})"
        over = "" if asked.source else "give --overwrite to start over, "
        raise UsageError(what, path=output, fix=f"run it as before, {over}or give {_OTHER}")
    if rows.checksum(inputs) != stored.inputs:
        path = plan_folder(output, stored.digest) / rows.INPUTS_NAME
        what = "is damaged" if path.is_file() else "is missing"
        over = "build again with --overwrite"
        fix = over if place_at(output).can_replace and not asked.source else _delete(output)
        raise DamageError(what, path=path, fix=fix)


def _delete(output: Location) -> str:
    """Say how to start over, also with --from, which has no --overwrite."""
    return f"delete {stage_of(output)} and build again"


def _changed_flags(stored: PlanFile, asked: PlanFile) -> list[tuple[str, str, str]]:
    found = start.changed_settings(stored.settings, asked.settings)
    for name, old, new in (
        ("IMAGES", *_inputs(stored, asked)),
        ("--captions", stored.captions, asked.captions),
        ("--ids", stored.recipe.ids, asked.recipe.ids),
        ("--append", stored.append, asked.append),
        ("--sha256", stored.sha256, asked.sha256),
        ("--from", stored.source, asked.source),
        ("--components", stored.components, asked.components),
        ("the file of --split-by", stored.groups, asked.groups),
    ):
        if old != new:
            found.append((name, _spelt(old), _spelt(new)))
    return found


def _inputs(stored: PlanFile, asked: PlanFile) -> tuple[str, str]:
    """Give the inputs as they were given; or where they are, if the same words name others."""
    old, new = ([listing.path for listing in plan.listings] for plan in (stored, asked))
    if old == new:
        old, new = ([joined(plan.at, path) for path in old] for plan in (stored, asked))
    return ", ".join(old), ", ".join(new)


def _spelt(value: object) -> str:
    if isinstance(value, list):
        return f"{value[0]} (xxh3 {value[1]})"
    if isinstance(value, bool):
        return "given" if value else "not given"
    return str(value or "not given")


def places(targets: Sequence[Target], stored: PlanFile | None, way: str | None) -> list[Start]:
    """Find where a stored plan goes on in each of its targets, or where a new one starts.

    A new plan may equal the last one, with --overwrite; then nothing of it is done yet.
    """
    over, found = way == "overwrite" and stored is None, []
    for target in targets:
        if stored is not None and has_run(target.folder, stored.digest):
            # Where its last run did, so that its plan comes out as it was.
            done = manifest.load_manifest(target.folder)
            assert done is not None
            begin = start.after(target, start.without_last(done), way == "append", None)
            found.append(replace(begin, finished=True))
        else:
            found.append(_start(target, way, over))
    return found


def has_run(folder: Location, digest: str) -> bool:
    """Whether the last run of a folder had this plan, and is finished."""
    with suppress(DamageError):  # reported when the run starts
        done, note = manifest.load_manifest(folder), manifest.load_unfinished(folder)
        return note is None and done is not None and done.runs[-1].plan == digest
    return False


def _start(target: Target, way: str | None, over: bool) -> Start:
    note = None if over else manifest.load_unfinished(target.folder)
    if note is not None and note.is_build:
        base = note.base or manifest.Manifest(runs=[], shards=[])
        return start.after(target, base, note.append, note)
    if over or way != "append":
        return start.fresh(target, overwrite=way == "overwrite")
    if note is not None:  # its shards are there already, and in no manifest
        resume, again = (with_layout(each, note.settings) for each in ("--resume", "--overwrite"))
        fix = f"finish it with shardwright pack {resume}, or give {again}"
        raise UsageError("its last run was an interrupted pack", path=target.folder, fix=fix)
    return start.append(target)


def known(places: Sequence[Start]) -> dict[str, bytes]:
    """Give the samples that stay: by their ids, what their images were, where on record."""
    found: dict[str, bytes] = {}
    for place in places:
        packed = place.packed
        plans = [run.plan for run in place.base.runs] if packed else []
        images = {image.image_id: image.line for image in built.load(place.folder, plans)}
        recorded = partial(_recorded, place.folder)
        for each in place_at(place.folder).each(recorded, packed):
            check()
            for image in each:
                line = images.get(image.image_id)
                # Pack has made its shard, or its shard was written again.
                if line is None or built.decode(line).path != image.path:
                    line = image.line
                found[image.image_id] = line
    return found


def _recorded(folder: Location, shard: Packed) -> list[built.Built]:
    """Give the images of a shard, as its records know them."""
    lines = records.load(folder, shard.entry.path, shard.entry.records_xxh3 or "")
    return [
        built.Built(each["image_id"], each.get("image_path") or "", xxh3=facts.image_xxh3 or "")
        for each, facts in lines
    ]


def require_free(place: Start, plan: PlanFile, way: str | None) -> None:
    """Raise if there are shards that this build would not replace."""
    there = [*place.loose]
    if way is None:
        there += existing(place.folder, existing_buckets(place.folder))
    if there:
        over = ", --overwrite to replace all" if place_at(place.folder).can_replace else ""
        add = f"give --append to add what is new{over}, or {_OTHER}"
        fix = f"give {_OTHER}" if plan.source else add
        what = "already exists, so nothing was written"
        raise ShardExistsError(what, path=there[0], fix=fix)


def require_same_kind(place: Start, recipe: Recipe, made: Mapping[str, provenance.Entry]) -> None:
    """Raise if samples would lie beside others that were made with other settings."""
    base = place.base
    if not base.shards:
        return
    fix = f"give {_OTHER}"
    if place_at(place.folder).can_replace:
        top = top_folder(place.folder, base.runs[-1].settings)
        fix = f"build all of it again with {overwriting(top)}, or {fix}"
    if (before := base.samples_of().ids) != recipe.ids:  # then all images would be new
        what = f"its image ids were made with --ids {before}, now {recipe.ids}"
        fix = f"give --ids {before}, or {fix}"
    elif listed := consistency.other_kind(base, recipe, made):
        what = f"its shards were made with other settings ({listed})"
    else:
        return
    raise ProvenanceError(f"{what}, so nothing was written", path=place.folder, fix=fix)
