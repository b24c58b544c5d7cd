"""What earlier runs left in a shard folder, and so where this one starts: what stays, what goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import msgspec
from msgspec import UNSET, UnsetType

from shardwright.errors import DamageError, UsageError
from shardwright.interrupts import check
from shardwright.packing.plan import Again, Packed
from shardwright.recipes.split import Split
from shardwright.shards.format import consistency, index, manifest
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.manifest import (
    Before,
    IdsFile,
    Manifest,
    PackSettings,
    Run,
    ShardEntry,
    Unfinished,
)
from shardwright.shards.format.names import (
    bucket_folder,
    existing_buckets,
    existing_shards,
    shard_number,
)
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.commands import quoted

_EMPTY = Manifest(runs=[], shards=[])


@dataclass(frozen=True)
class Target:
    """A shard folder, and the part of a split that belongs there."""

    folder: Location
    part: str | None = None

    @property
    def prefix(self) -> str:
        """Give what is before the name of a shard in a report of all targets."""
        return f"{self.part}/" if self.part else ""


@dataclass(frozen=True)
class Start(Target):
    """Where a run starts, and with that the next state of a folder, but for what is new."""

    base: Manifest = _EMPTY  # the shards that stay as they are
    loose: Sequence[Location] = ()  # shards that no manifest lists, and this run would not remove
    append: bool = False  # whether the run adds to the base
    note: Unfinished | None = None  # the run that was interrupted, or is gone over again
    replaced: Collection[str] = ()  # buckets whose old shards go; after an interruption, mixed ones
    packed: Sequence[Packed] = ()  # the shards that were there, unless they are all replaced
    before: Manifest | None = None  # of a sync: what it follows up
    again: Sequence[Again] = ()  # of a sync: the shards to write again
    finished: bool = False  # of a build: whether the manifest has its plan already

    @property
    def store_ids(self) -> list[str]:
        """Give the known identities of the stores that its shards are packed from."""
        noted = self.note.store_id if self.note else None
        return [*consistency.store_ids(self.before or self.base), *([noted] if noted else [])]

    @property
    def jsonls(self) -> list[str]:
        """Name the JSONLs that its shards are packed from."""
        names = (self.before or self.base).jsonls()
        noted = self.note.jsonl if self.note else None
        return names if noted is None or noted in names else [*names, noted]

    @property
    def has_sha256(self) -> bool:
        """Whether there is SHA256SUMS, which is kept up."""
        shards = (self.before or self.base).shards
        return bool(shards) and all(entry.sha256 is not None for entry in shards)

    @cached_property
    def known(self) -> frozenset[str]:
        """Give the ids that have a sample in the base, when it is added to."""
        ids = (image_id for shard in self.packed for image_id in shard.ids)
        return frozenset(ids) if self.append else frozenset()

    @property
    def first_numbers(self) -> dict[str, int]:
        """Give the number of the first new shard by bucket, where it is not 0."""
        used = [(shard.bucket, shard.number) for shard in self.again]
        if self.append or self.before:
            used += [(shard.bucket, shard_number(shard.path)) for shard in self.base.shards]
        return {bucket: number + 1 for bucket, number in sorted(used)}

    @property
    def sync(self) -> Before | UnsetType:
        """Give what is needed to finish a sync although old shards are gone."""
        if self.before is None:
            return UNSET
        stay = {entry.path for entry in self.base.shards}
        going = [shard for shard in self.packed if shard.entry.path not in stay]
        return Before(
            self.before,
            {shard.entry.path: list(shard.ids) for shard in going},
            {shard.entry.path: dict(shard.changes) for shard in going if shard.changes},
        )


def changed_settings(old: PackSettings, new: PackSettings) -> list[tuple[str, str, str]]:
    """List the settings that differ: the flag, what it was and what it is."""
    before, now = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return [
        (_flag(name), _value(value), _value(now[name]))
        for name, value in before.items()
        if value != now[name]
    ]


def spelt(conditions: Sequence[str]) -> str:
    """Say with which conditions a folder was packed."""
    listed = " ".join(map(quoted, conditions))
    return f"with {listed}" if conditions else "without conditions"


def existing(output: Location, buckets: Iterable[str]) -> list[Location]:
    """Find the shards that are already there in some buckets."""
    return [
        path
        for bucket in buckets
        for path in existing_shards(output / bucket_folder(bucket)).values()
    ]


def fresh(target: Target, *, overwrite: bool, only: Collection[str] = ()) -> Start:
    """Start over; shards of other buckets stay, unless all are overwritten."""
    output, part = target.folder, target.part
    going = (only or existing_buckets(output)) if overwrite else []
    replaced = [name for name in going if existing(output, [name])]
    if overwrite and not only:
        return Start(output, part, replaced=replaced)
    note = _unfinished(output)
    base, gone = _base(output, note), {*going, *(note.replaces if note else ())}
    base = restricted(base, [shard for shard in base.shards if shard.bucket not in gone])
    unlisted = _unlisted(output, base) if note else []
    loose = [path for path in unlisted if path.parent.name not in map(bucket_folder, going)]
    return Start(output, part, base, loose, note=note, replaced=replaced)


def append(target: Target) -> Start:
    """Start after the last shard of each bucket."""
    output, note = target.folder, _unfinished(target.folder)
    if note is not None and note.sync:
        fix = "finish it with --sync, which also packs what is new"
        raise UsageError("its last run was interrupted", path=output, fix=fix)
    return after(target, _listed(output, note, "--append"), True, note)


def sync(target: Target) -> Start:
    """Start with all shards that are there, or were before an interrupted sync."""
    output, note = target.folder, _unfinished(target.folder)
    if note is not None and note.sync:
        return after(target, _EMPTY, False, note, note.sync)
    base = _listed(output, note, "--sync")
    if any(run.is_build for run in base.runs):
        what = "was made by shardwright build, and --sync follows a store"
        over = with_layout("--overwrite", base.runs[-1].settings)
        raise UsageError(what, path=output, fix=f"build with --append, or pack with {over}")
    return after(target, base, False, note, Before(base, {}))


def resume(target: Target, current: Unfinished | Run | None = None) -> Start:
    """Start where the last run was interrupted, or go over it again if it was not.

    A part of a split that the ``current`` run has not begun begins as that run does.
    """
    output, part = target.folder, target.part
    last = last_in(output) if part and current else None
    if part and current and not isinstance(last, Unfinished):
        plan = current.parts.get(part) if current.parts else None
        if last is None or last.plan != plan:
            way = sync if current.sync else append if current.append else _new
            return way(target)
    note = _unfinished(output) or _last_as_unfinished(output)
    if note is None:  # then no run of ours has begun here
        return _new(target)
    return after(target, note.base or _EMPTY, note.append, note, note.sync)


def _new(target: Target) -> Start:
    return Start(target.folder, target.part, loose=_unlisted(target.folder, _EMPTY))


def after(
    target: Target,
    base: Manifest,
    append: bool,
    note: Unfinished | None,
    sync: Before | UnsetType = UNSET,
) -> Start:
    """Start with the shards of a base, or of a sync, and go on with the run that is noted."""
    base = sync.manifest if sync else base
    packed = _packed(target.folder, base, sync or Before(base, {})) if append or sync else ()
    return Start(
        target.folder,
        target.part,
        base,
        append=append,
        note=note,
        replaced=note.replaces if note else (),
        packed=packed,
        before=base if sync else None,
    )


def without_last(done: Manifest) -> Manifest:
    """Give a manifest as it was before its last run, but for what that has replaced."""
    last = len(done.runs) - 1
    kept = [shard for shard in done.shards if shard.run != last]
    return msgspec.structs.replace(done, runs=done.runs[:-1], shards=kept)


def current_run(outputs: Iterable[Location]) -> Unfinished | Run | None:
    """Find the last run into the parts of a split: the unfinished one, or the latest.

    A damaged manifest names none; it is reported where it is needed.
    """
    lasts: dict[str, Unfinished | Run] = {}
    for output in outputs:
        with suppress(DamageError):
            if (last := last_in(output)) is not None:
                lasts[output.name] = last
    for last in lasts.values():
        if isinstance(last, Unfinished):
            return last
    plans = {name: last.plan for name, last in lasts.items()}
    for last in lasts.values():
        # A later run would have given one of its parts another plan.
        if all(plans.get(name) in (None, plan) for name, plan in (last.parts or {}).items()):
            return last
    return None


def last_in(output: Location) -> Unfinished | Run | None:
    """Give the last run into a folder, which may not have finished."""
    if (note := manifest.load_unfinished(output)) is not None:
        return note
    done = manifest.load_manifest(output)
    return done.runs[-1] if done else None


def asked_buckets(starts: Iterable[Start]) -> list[str]:
    """Give the buckets that any run of a folder that is synced was asked for; none for all."""
    asked: list[list[str]] = []
    for start in starts:
        asked += [run.settings.buckets for run in start.before.runs] if start.before else []
        asked += [start.note.settings.buckets] if start.note else []
    return sorted({name for names in asked for name in names}) if all(asked) else []


def packed_ids(output: Location) -> frozenset[str]:
    """Read the ids that have a sample in the finished shards of a folder."""
    done = manifest.load_manifest(output)
    shards = done.shards if done else ()
    return frozenset(i for shard in shards for i in index.load(output, shard.path).head.ids)


def restricted(base: Manifest, shards: Sequence[ShardEntry]) -> Manifest:
    """Leave out all but some shards, and the runs that then have none."""
    numbers = {old: new for new, old in enumerate(sorted({shard.run for shard in shards}))}
    return msgspec.structs.replace(
        base,
        runs=[base.runs[old] for old in numbers],
        shards=[msgspec.structs.replace(shard, run=numbers[shard.run]) for shard in shards],
    )


def _unfinished(output: Location) -> Unfinished | None:
    """Read the note of an interrupted run; raise if only a build can finish it."""
    note = manifest.load_unfinished(output)
    if note is not None and note.is_build:
        what = "its last run was an interrupted build"
        fix = "run the same shardwright build again to finish it, or give another --output-dir"
        raise UsageError(what, path=output, fix=fix)
    return note


def _last_as_unfinished(output: Location) -> Unfinished | None:
    """Give the last run of a folder as if it had not finished, to go over it again."""
    if (done := manifest.load_manifest(output)) is None:
        return None
    last, run = len(done.runs) - 1, done.runs[-1]
    if run.is_build:
        fix = f"pack with --append, or with {with_layout('--overwrite', run.settings)}"
        raise UsageError("its last run was a build, which is finished", path=output, fix=fix)
    written = [shard.path for shard in done.shards if shard.run == last] if run.sync else []
    ids = {path: index.load(output, path).head.ids for path in written}
    return Unfinished(
        append=run.append,
        plan=run.plan,
        settings=run.settings,
        replaces=[],
        base=without_last(done),
        jsonl=run.jsonl,
        store_id=run.store_id,
        sync=Before(done, ids) if run.sync else UNSET,
    )


def _listed(output: Location, note: Unfinished | None, way: str) -> Manifest:
    """Give the manifest to add to; raise if there are other shards, or an interrupted run."""
    if note is not None and not note.append:
        finish, over = (with_layout(each, note.settings) for each in ("--resume", "--overwrite"))
        fix = f"finish it with {finish}, or make all shards again with {over}, before you {way}"
        raise UsageError("its last run was interrupted", path=output, fix=fix)
    base = _base(output, note)
    # After an interrupted --append, what is not listed is of that run.
    if note is None and (unlisted := _unlisted(output, base)):
        over = with_layout("--overwrite", base.runs[-1].settings if base.runs else None)
        fix = f"move it elsewhere, or make all shards again with {over}, before you {way}"
        what = "is not in the manifest, so its samples are unknown"
        raise UsageError(what, path=unlisted[0], fix=fix)
    return base


def _unlisted(output: Location, base: Manifest) -> list[Location]:
    """Find the shards that a manifest does not list."""
    listed = {output / shard.path for shard in base.shards}
    return [path for path in existing(output, existing_buckets(output)) if path not in listed]


def _base(output: Location, note: Unfinished | None) -> Manifest:
    return (note.base if note else manifest.load_manifest(output)) or _EMPTY


def _packed(output: Location, listed: Manifest, known: Before) -> list[Packed]:
    """Read the ids of the listed shards; those of some that may be gone are ``known``."""
    there = place_at(output).sizes([entry.path for entry in listed.shards])
    for entry in listed.shards:
        if entry.path not in known.ids and there.get(entry.path) != entry.bytes:
            over = with_layout("--overwrite", listed.runs[-1].settings)
            fix = f"restore a copy, or make all shards again with {over}, before you add to it"
            raise DamageError("is missing or incomplete", path=output / entry.path, fix=fix)

    def packed(entry: ShardEntry) -> Packed:
        check()
        if (ids := known.ids.get(entry.path)) is not None:
            return Packed(entry, ids, replaced=True, changes=known.changes.get(entry.path, {}))
        return Packed(entry, index.load(output, entry.path).head.ids)

    return list(place_at(output).each(packed, listed.shards))


def _flag(setting: str) -> str:
    return "--bucket" if setting == "buckets" else f"--{setting.replace('_', '-')}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "given" if value else "not given"
    if isinstance(value, Split):
        return " ".join(value.flags()[1:])
    if isinstance(value, IdsFile):
        return f"{value.path} (xxh3 {value.xxh3})"
    if isinstance(value, list):
        value = ",".join(value) or None
    return "not given" if value is None else str(value)
