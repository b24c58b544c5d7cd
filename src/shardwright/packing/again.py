"""A folder that is packed again: whether it may be, what it keeps, and what is not as it was.

What excludes samples (conditions, lists, the split) is kept until it is dropped by name. What lays
them out (buckets, limit, shuffle, shard size) is as given now; only a sync goes on with that too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from shardwright.errors import DamageError, ProvenanceError, UsageError
from shardwright.packing import start
from shardwright.packing.choice import Request, require_lists
from shardwright.packing.splits import recorded
from shardwright.packing.start import Start, Target
from shardwright.progress import Progress, quantity
from shardwright.recipes.split import Split
from shardwright.shards.format import consistency
from shardwright.shards.format.manifest import (
    CONDITIONS,
    IdsFile,
    Manifest,
    PackSettings,
    Run,
    Unfinished,
)
from shardwright.shards.format.names import existing_buckets
from shardwright.shards.format.parts import parts_of, top_folder
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location, joined, relative_name
from shardwright.store import commands
from shardwright.store.commands import quoted, split_flags
from shardwright.store.provenance import Entry
from shardwright.store.store import Store
from shardwright.text import near

_DIGITS = 12  # of an identity, in an error


class Last(NamedTuple):
    """The last run into a folder."""

    top: Location  # of all parts
    run: Run | Unfinished
    settings: PackSettings  # as this store spells them


class Asked(NamedTuple):
    """What a run into a folder is asked for."""

    output: Location
    way: str | None
    given: Collection[str]  # settings that were given, also with ``none``
    folder: Location  # that lists of ids are named from


def last_run(request: Request, targets: Sequence[Target]) -> Last | None:
    """Find the last run into the targets; of a part that is packed alone, into any part."""
    top = top_of(request.output_dir, targets)
    found = start.current_run(target.folder for target in targets)
    if alone(targets):
        found = found or start.current_run(parts_of(top).values())
    return None if found is None else Last(top, found, _as_of(request.store, found, top))


def top_of(output: Location, targets: Sequence[Target]) -> Location:
    """Give the folder of all parts, also where one is packed alone."""
    return targets[0].folder.absolute().parent if alone(targets) else output


def alone(targets: Sequence[Target]) -> bool:
    """Whether one part of a split is packed without the others."""
    return targets[0].part is not None and len(targets) == 1


def _as_of(store: Store, run: Run | Unfinished, top: Location) -> PackSettings:
    """Give the settings of a run; a build names its lists from its output, and not from a store."""
    if not run.is_build:
        return run.settings
    return _listed(run.settings, lambda path: relative_name(joined(top, path), store.folder))


def _listed(settings: PackSettings, named: Callable[[str], str]) -> PackSettings:
    """Give settings with another name for each list of ids."""
    lists = {name: getattr(settings, name) for name in CONDITIONS}
    now = {n: IdsFile(named(f.path), f.xxh3) for n, f in lists.items() if isinstance(f, IdsFile)}
    return msgspec.structs.replace(settings, **now)


def settings_of(
    request: Request,
    split: Split | None,
    starts: Sequence[Start],
    last: Last | None,
) -> PackSettings:
    """Complete the settings by those of the last run, which chose the samples that are there.

    All runs of a folder share their conditions, so that a sync can judge every packed sample.
    """
    own = msgspec.structs.replace(request.settings, split=split)
    if last is None:
        return own
    before, way, folder = last.settings, request.way, request.store.folder
    as_before = own.chosen_as(before, request.given)
    stays = alone(starts) or (way != "sync" and any(begin.base.shards for begin in starts))
    if stays and way != "resume":  # which is refused for any other setting
        was = before.conditions(folder)
        if was != as_before.conditions(folder):
            require_lists(as_before, folder)  # the command that follows names them
            change = _dropped(before, as_before) + as_before.conditions(folder)
            what = f"was packed {start.spelt(was)}, so nothing was written"
            fix = f"to change that, run {commands.pack(request.store, last.top, '--sync', *change)}"
            if last.run.is_build:
                fix = "give the same conditions, or another --output-dir"
            raise UsageError(what, path=request.output_dir, fix=fix)
    if way == "sync" or (way == "resume" and last.run.sync):
        scope = {"buckets": start.asked_buckets(starts)}
        given = {**scope, **request.given, "split": split, "part": None}
        settings = msgspec.structs.replace(before, **given)
        seed = (settings.seed or 0) if settings.shuffle else None
        return msgspec.structs.replace(settings, seed=seed)
    return as_before


def _dropped(before: PackSettings, now: PackSettings) -> list[str]:
    """Spell the flags that drop what excluded samples before and does not now."""
    flags = [f for n, f in CONDITIONS.items() if getattr(before, n) and not getattr(now, n)]
    return [word for flag in flags for word in (flag, "none")]


def announce(
    asked: Asked,
    last: Last | None,
    settings: PackSettings,
    targets: Sequence[Target],
    progress: Progress,
) -> None:
    """Report what is kept of the last run, and what is not as it was."""
    if last is None:
        if asked.way == "overwrite" and (state := _state_of_manifests(targets)):
            progress.warn(
                f"{asked.output}: its manifest is {state}, so the conditions, lists and split of "
                "the last run are unknown, and only those given now apply"
            )
        return
    given: dict[str, list[str] | None] = {
        name: [] if name == "where" else None for name in asked.given if name in CONDITIONS
    }
    kept = msgspec.structs.replace(settings, **given)
    words = kept.conditions(asked.folder)
    droppable = [f"{flag} none" for name, flag in CONDITIONS.items() if getattr(kept, name)]
    if settings.split is not None and "split" not in asked.given:
        words = [*split_flags(settings.split, last.top), *words]
        if asked.way == "overwrite" and not alone(targets):
            droppable.insert(0, "--split none")
    if words:
        can_drop = asked.way == "sync" or (asked.way == "overwrite" and not settings.buckets)
        drop = f" (to drop it: {', '.join(droppable)})" if can_drop and droppable else ""
        spelt = " ".join(map(quoted, words))
        progress.say(f"{last.top}: kept from the last run: {spelt}{drop}")
    if asked.way != "resume" and (listed := _differences(asked, last, settings)):
        progress.say(f"{last.top}: not as in the last run: {', '.join(listed)}")


def _state_of_manifests(targets: Sequence[Target]) -> str | None:
    """Say why it is not known how shards that are there were packed."""
    for target in targets:
        try:
            known = start.last_in(target.folder) is not None
        except DamageError:
            return "damaged"
        if not known and start.existing(target.folder, existing_buckets(target.folder)):
            return "missing"
    return None


def warn_of_limit(limit: int, packed: int, request: Request, progress: Progress) -> None:
    """Warn of a limit that is below the number of samples that are packed, which all stay."""
    if "limit" in request.given and limit < packed:
        stay = "is packed and stays" if packed == 1 else "are packed and stay"
        progress.warn(
            f"--limit {limit:,}: {quantity(packed, 'samples')} {stay}; --sync adds none beyond the "
            "limit. To pack fewer, use --overwrite"
        )


def _differences(asked: Asked, last: Last, settings: PackSettings) -> list[str]:
    """Say what is not as in the last run."""
    same: dict[str, Any] = {"part": last.settings.part}
    if asked.way == "sync":  # which follows the buckets of all runs
        same["buckets"] = last.settings.buckets
    now = msgspec.structs.replace(settings, **same)
    before, now = (_from_here(one, asked.folder, last.top) for one in (last.settings, now))
    changes = start.changed_settings(before, now)
    return [f"{flag} was {old} and is {new}" for flag, old, new in changes]


def _from_here(settings: PackSettings, folder: Location, top: Location) -> PackSettings:
    """Give settings with their lists as the user would name them, to be shown."""
    if (split := settings.split) and split.by is not None and split.has_groups:
        shown = replace(split, by=near(str(joined(top, split.by))))
        settings = msgspec.structs.replace(settings, split=shown)
    return _listed(settings, lambda path: near(str(joined(folder, path))))


def overwrite(store: Store, top: Location) -> str:
    """Write the command that packs all of a folder again, with the same selection and layout."""
    flags: list[str] = []
    if (found := recorded(top)) is not None:
        run, settings = found
        run = msgspec.structs.replace(run, settings=settings)
        flags = _as_of(store, run, top).flags(store.folder, top)
    return commands.pack(store, top, "--overwrite", *flags)


def require_same_source(store: Store, store_id: str | None, begin: Start, top: Location) -> None:
    """Raise if shards that stay, or the run to resume, are of another store or JSONL.

    Another store has another identity; another JSONL of one store may hold out samples.
    """
    known, names, output = begin.store_ids, begin.jsonls, begin.folder
    others = [name for name in names if name != jsonl_name(store)]
    give = ""
    if known and store_id not in known:
        own = f" (identity {store_id[:_DIGITS]})" if store_id else ", which has no identity"
        before = f"another store (identity {known[-1][:_DIGITS]}), not from {store.folder}{own}"
    elif others:
        paths = [str(store.of(name).jsonl) for name in others]
        before = " and ".join(paths) + f", not {'only ' * (names != others)}from {store.jsonl}"
        give = f"give --jsonl {quoted(paths[0])}; " if len(names) == 1 else ""
    else:
        return
    fix = "give another --output-dir"
    if place_at(output).can_replace:
        fix = f"to replace its shards, run {overwrite(store, top)}; or {fix}"
    what = f"was packed from {before}, so nothing was written"
    raise UsageError(what, path=output, fix=give + fix)


def jsonl_name(store: Store) -> str:
    """Give the path of the JSONL as a run records it."""
    return relative_name(store.jsonl, store.folder)


def require_same_kind(
    store: Store, entries: Mapping[str, Entry], base: Manifest, output: Location, progress: Progress
) -> None:
    """Raise if the store's arrays were made with other settings than those of the shards kept.

    Where the settings are not recorded, warn.
    """
    if not base.shards:
        return
    if names := consistency.unknown_settings(base, entries):
        progress.warn(
            f"{output}: the settings of {' and '.join(names)} are recorded only for the shards or "
            "only for the store; check that they are the same"
        )
    if listed := consistency.other_recipe(base, store.recipe):
        made = f"its shards were made with another recipe ({listed})"
    elif listed := consistency.other_settings(base, entries):
        made = f"its arrays were made with other settings ({listed})"
    else:
        return
    fix = "give another --output-dir, with all flags of the last run"
    if place_at(output).can_replace:
        command = overwrite(store, top_folder(output, base.runs[-1].settings))
        fix = f"to pack all of it again, run {command}; or run that with another --output-dir"
    raise ProvenanceError(f"{made}, so nothing was written", path=output, fix=fix)
