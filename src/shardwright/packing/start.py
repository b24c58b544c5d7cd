"""What earlier runs left in the output folder, and so where this one starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from shardwright.errors import DamageError, UsageError
from shardwright.interrupts import check
from shardwright.packing.outdated import Packed
from shardwright.packing.plan import Again
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
class Start:
    """Where a run starts."""

    base: Manifest  # the shards that stay as they are
    loose: Sequence[Location] = ()  # shards that no manifest lists, and this run would not remove
    append: bool = False  # whether the run adds to the base
    resumed: Unfinished | None = None  # the run that is continued
    replaced: Collection[str] = ()  # buckets whose old shards go; after an interruption, mixed ones
    known: frozenset[str] = frozenset()  # ids that have a sample in the base
    first_numbers: dict[str, int] = field(default_factory=dict)  # of new shards, by bucket
    packed: Sequence[Packed] = ()  # the shards that were there, unless they are all replaced
    before: Manifest | None = None  # of a sync: what it follows up
    again: Sequence[Again] = ()  # of a sync: the shards to write again

    @property
    def store_ids(self) -> list[str]:
        """Give the known identities of the stores that its shards were packed from."""
        known = consistency.store_ids(self.before or self.base)
        resumed = self.resumed.store_id if self.resumed else None
        return [*known, resumed] if resumed else known

    def require_same(self, plan: str, settings: PackSettings) -> None:
        """Raise if what would be packed now is not what the resumed run was packing."""
        if self.resumed is None or self.resumed.plan == plan:
            return
        changes = changed_settings(self.resumed.settings, settings)
        differing = [f"{flag} was {old} and is {new}" for flag, old, new in changes]
        what = ", ".join(differing) or "the records or arrays of the store have changed"
        was = self.resumed.settings
        fix = f"run it as before, with {with_layout('--resume', was)}, or pack again with "
        fix += "--sync" if self.before else with_layout("--overwrite", was)
        raise UsageError(f"--resume: this is not the run to resume: {what}", fix=fix)


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


def fresh(output: Location, *, overwrite: bool, only: Collection[str]) -> Start:
    """Start over; shards of other buckets stay, unless all are overwritten."""
    going = (only or existing_buckets(output)) if overwrite else []
    replaced = [name for name in going if existing(output, [name])]
    if overwrite and not only:
        return Start(_EMPTY, replaced=replaced)
    unfinished = _unfinished(output)
    base = _base(output, unfinished)
    mixed = set(unfinished.replaces) if unfinished else set()
    base = _without({*mixed, *going}, base)
    unlisted = _unlisted(output, base) if unfinished else []
    loose = [path for path in unlisted if path.parent.name not in map(bucket_folder, going)]
    return Start(base, loose, replaced=replaced)


def append(output: Location) -> Start:
    """Start after the last shard of each bucket."""
    unfinished = _unfinished(output)
    if unfinished is not None and unfinished.sync:
        fix = "finish it with --sync, which also packs what is new"
        raise UsageError("its last run was interrupted", path=output, fix=fix)
    return after(output, _listed(output, unfinished, "--append"), True, unfinished)


def sync(output: Location) -> Start:
    """Start with all shards that are there, or were before an interrupted sync."""
    unfinished = _unfinished(output)
    if unfinished is not None and unfinished.sync:
        return _synced(output, unfinished.sync, unfinished)
    base = _listed(output, unfinished, "--sync")
    if any(run.is_build for run in base.runs):
        what = "was made by shardwright build, and --sync follows a store"
        over = with_layout("--overwrite", base.runs[-1].settings)
        fix = f"build with --append, or pack with {over}"
        raise UsageError(what, path=output, fix=fix)
    return _synced(output, Before(base, {}), unfinished)


def _unfinished(output: Location) -> Unfinished | None:
    """Read the note of an interrupted run; raise if only a build can finish it."""
    unfinished = manifest.load_unfinished(output)
    if unfinished is not None and unfinished.is_build:
        what = "its last run was an interrupted build"
        fix = "run the same shardwright build again to finish it, or give another --output-dir"
        raise UsageError(what, path=output, fix=fix)
    return unfinished


def _listed(output: Location, unfinished: Unfinished | None, way: str) -> Manifest:
    """Give the manifest to add to; raise if there are other shards, or an interrupted run."""
    if unfinished is not None and not unfinished.append:
        ways = ("--resume", "--overwrite")
        finish, over = (with_layout(each, unfinished.settings) for each in ways)
        fix = f"finish it with {finish}, or make all shards again with {over}, before you {way}"
        raise UsageError("its last run was interrupted", path=output, fix=fix)
    base = _base(output, unfinished)
    # After an interrupted --append, what is not listed is of that run.
    if unfinished is None and (unlisted := _unlisted(output, base)):
        over = with_layout("--overwrite", base.runs[-1].settings if base.runs else None)
        fix = f"move it elsewhere, or make all shards again with {over}, before you {way}"
        what = "is not in the manifest, so its samples are unknown"
        raise UsageError(what, path=unlisted[0], fix=fix)
    return base


def _synced(output: Location, before: Before, unfinished: Unfinished | None) -> Start:
    packed = [
        replace(shard, changes=before.changes.get(shard.entry.path, {}))
        for shard in _packed(output, before.manifest, before.ids)
    ]
    replaced = unfinished.replaces if unfinished else ()
    return Start(
        before.manifest,
        resumed=unfinished,
        replaced=replaced,
        packed=packed,
        before=before.manifest,
    )


def resume(output: Location) -> Start:
    """Start where the last run was interrupted, or go over it again if it was not."""
    unfinished = _unfinished(output)
    if unfinished is not None and unfinished.sync:
        return _synced(output, unfinished.sync, unfinished)
    if unfinished is not None:
        return after(output, _base(output, unfinished), unfinished.append, unfinished)
    done = manifest.load_manifest(output)
    if done is None:  # then no run of ours has begun here
        return Start(_EMPTY, loose=_unlisted(output, _EMPTY))
    last = len(done.runs) - 1
    kept = [shard for shard in done.shards if shard.run != last]
    base = msgspec.structs.replace(done, runs=done.runs[:-1], shards=kept)
    run = done.runs[-1]
    if run.is_build:
        fix = f"pack with --append, or with {with_layout('--overwrite', run.settings)}"
        raise UsageError("its last run was a build, which is finished", path=output, fix=fix)
    again = Unfinished(
        append=run.append,
        plan=run.plan,
        settings=run.settings,
        replaces=[],
        base=base,
        store_id=run.store_id,
    )
    if run.sync:
        written = [shard.path for shard in done.shards if shard.run == last]
        ids = {path: index.load(output, path).head.ids for path in written}
        return _synced(output, Before(done, ids), again)
    return after(output, base, run.append, again)


def resume_part(output: Location, part: str, current: Unfinished | Run | None) -> Start:
    """Start a part of a split where the ``current`` run left it.

    It is resumed if that run has begun it. Otherwise it begins.
    """
    last = _last(output)
    if current is None or isinstance(last, Unfinished):
        return resume(output)
    if current.sync:
        return resume(output) if last is not None and last.sync else sync(output)
    if last is not None and last.plan == _plans(current).get(part):
        return resume(output)
    return append(output) if current.append else Start(_EMPTY, loose=_unlisted(output, _EMPTY))


def current_run(outputs: Iterable[Location]) -> Unfinished | Run | None:
    """Find the last run into the parts of a split: the unfinished one, or the latest.

    A damaged manifest names none; it is reported where it is needed.
    """
    lasts: dict[str, Unfinished | Run] = {}
    for output in outputs:
        with suppress(DamageError):
            if (last := _last(output)) is not None:
                lasts[output.name] = last
    for last in lasts.values():
        if isinstance(last, Unfinished):
            return last
    plans = {name: last.plan for name, last in lasts.items()}
    for last in lasts.values():
        # A later run would have given one of its parts another plan.
        if all(plans.get(name) in (None, plan) for name, plan in _plans(last).items()):
            return last
    return None


def _last(output: Location) -> Unfinished | Run | None:
    if (unfinished := manifest.load_unfinished(output)) is not None:
        return unfinished
    done = manifest.load_manifest(output)
    return done.runs[-1] if done else None


def _plans(run: Unfinished | Run) -> dict[str, str]:
    return run.parts or {}


def asked_buckets(starts: Iterable[Start]) -> list[str]:
    """Give the buckets that any run of a folder that is synced was asked for; none for all."""
    asked: list[list[str]] = []
    for start in starts:
        asked += [run.settings.buckets for run in start.before.runs] if start.before else []
        asked += [start.resumed.settings.buckets] if start.resumed else []
    return sorted({name for names in asked for name in names}) if all(asked) else []


def packed_ids(output: Location) -> frozenset[str]:
    """Read the ids that have a sample in the finished shards of a folder."""
    done = manifest.load_manifest(output)
    shards = done.shards if done else ()
    return frozenset(i for shard in shards for i in index.load(output, shard.path).head.ids)


def packed_from(output: Location) -> list[str]:
    """Name the JSONLs that the shards of the folder were packed from, as far as recorded."""
    names: list[str] = []
    with suppress(DamageError):  # then they are unknown, and --overwrite is the way out
        done, unfinished = manifest.load_manifest(output), manifest.load_unfinished(output)
        for known in (done, unfinished.base if unfinished else None):
            names += known.jsonls() if known else []
        names += [unfinished.jsonl] if unfinished and unfinished.jsonl else []
    return list(dict.fromkeys(names))


def _without(buckets: Collection[str], base: Manifest) -> Manifest:
    """Leave out the shards of some buckets, and the runs that then have none."""
    return only(base, [shard for shard in base.shards if shard.bucket not in buckets])


def only(base: Manifest, shards: Sequence[ShardEntry]) -> Manifest:
    """Leave out all but some shards, and the runs that then have none."""
    numbers = {old: new for new, old in enumerate(sorted({shard.run for shard in shards}))}
    return msgspec.structs.replace(
        base,
        runs=[base.runs[old] for old in numbers],
        shards=[msgspec.structs.replace(shard, run=numbers[shard.run]) for shard in shards],
    )


def _unlisted(output: Location, base: Manifest) -> list[Location]:
    """Find the shards that a manifest does not list."""
    listed = {output / shard.path for shard in base.shards}
    return [path for path in existing(output, existing_buckets(output)) if path not in listed]


def _base(output: Location, unfinished: Unfinished | None) -> Manifest:
    return (unfinished.base if unfinished else manifest.load_manifest(output)) or _EMPTY


def after(output: Location, base: Manifest, append: bool, unfinished: Unfinished | None) -> Start:
    """Start with the shards of a base; if they are added to, after the last of each bucket."""
    packed = _packed(output, base, {}) if append else []
    numbers: dict[str, int] = {}
    for entry in (shard.entry for shard in packed):
        number = shard_number(entry.path) + 1
        numbers[entry.bucket] = max(numbers.get(entry.bucket, 0), number)
    return Start(
        base,
        append=append,
        resumed=unfinished,
        replaced=unfinished.replaces if unfinished else (),
        known=frozenset(name for shard in packed for name in shard.ids),
        first_numbers=numbers,
        packed=packed,
    )


def _packed(output: Location, listed: Manifest, gone: Mapping[str, Sequence[str]]) -> list[Packed]:
    """Read the ids of the listed shards; those of some that may be ``gone`` are known."""
    there = place_at(output).sizes([entry.path for entry in listed.shards])
    for entry in listed.shards:
        if entry.path not in gone and there.get(entry.path) != entry.bytes:
            over = with_layout("--overwrite", listed.runs[-1].settings)
            fix = f"restore a copy, or make all shards again with {over}, before you add to it"
            raise DamageError("is missing or incomplete", path=output / entry.path, fix=fix)

    def packed(entry: ShardEntry) -> Packed:
        check()
        ids = gone.get(entry.path)
        known = index.load(output, entry.path).head.ids if ids is None else ids
        return Packed(entry, known, replaced=ids is not None)

    return list(place_at(output).each(packed, listed.shards))


def mixed(output: Location, start: Start, kept: Collection[str]) -> list[str]:
    """Name the buckets with shards that a sync replaces or removes."""
    stay = {output / path for path in (*kept, *(entry.path for entry in start.base.shards))}
    buckets = existing_buckets(output)
    going = {name for name in buckets if not stay.issuperset(existing(output, [name]))}
    return sorted(going.union(start.replaced))


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
