"""The shard folders that a run packs into: one, or one for each part of a split."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from shardwright.errors import DamageError, UsageError
from shardwright.packing.start import current_run, existing
from shardwright.recipes.split import Split
from shardwright.shards.format import manifest, parts
from shardwright.shards.format.again import complete, with_layout
from shardwright.shards.format.manifest import Manifest, PackSettings, Run, Unfinished
from shardwright.shards.format.names import existing_buckets
from shardwright.storage.urls import Location
from shardwright.store.commands import quoted, split_flags


@dataclass(frozen=True)
class Target:
    """A shard folder, and the part of a split that belongs there."""

    folder: Location
    part: str | None = None

    @property
    def prefix(self) -> str:
        """Give what is before the name of a shard in a report of all targets."""
        return f"{self.part}/" if self.part else ""


def find_targets(
    output: Location, settings: PackSettings, way: str | None, given: Collection[str] | None = None
) -> tuple[Split | None, list[Target]]:
    """Find the folders to pack into, by the split that is asked for or was recorded before.

    Of the flags that are ``given``, if that is known, a split of None drops the one before; without
    one, that of the recipe is for a folder without shards. Raise if samples would move from one
    part to another.
    """
    flag = None if given is None else "split" in given
    own = None
    with suppress(DamageError):  # reported when the run starts; --overwrite is the way out
        own = parts.last_settings(output)
    part, recorded = (own.part, own.split) if own else _named_beside(output)
    if part is not None and recorded is not None:
        top = output.absolute().parent
        _require_same(output, None if flag is False else settings.split, recorded, top, way)
        return recorded, [Target(output, part)]
    going = [Target(folder, folder.name) for folder in parts.dropped_parts(output)]
    if own is not None or existing(output, existing_buckets(output)):
        if settings.split is not None:
            what = "holds shards that are not split, so nothing was written"
            fix = "give another --output-dir, or remove these shards"
            raise UsageError(what, path=output, fix=fix)
        return None, [*going, Target(output)]
    before = parts.recorded_splits(output)
    if flag and settings.split is None and before:
        _require_all_new(output, before, settings, way)
        # First the parts: as long as one of them is noted as dropped, it is known that they go.
        going += [Target(output / name, name) for name in before]
        return None, [*going, Target(output)]
    kept = next(iter(before.values()), None)
    split = (kept or settings.split) if flag is False else (settings.split or kept)
    if split is None:
        _require_readable(output)
        return None, [*going, Target(output)]
    if way != "overwrite" or settings.split is None or settings.buckets:
        for each in before.values():
            _require_same(output, split, each, output, way)
    # Also parts that are no more: their shards are removed, as their samples are in others now.
    names = dict.fromkeys((*split.names, *before))
    return split, [Target(output / name, name) for name in names]


def _require_all_new(
    output: Location, before: Collection[str], settings: PackSettings, way: str | None
) -> None:
    """Raise if parts would stay beside shards that are not split."""
    if way != "overwrite" or settings.buckets:
        what = f"is split into {', '.join(before)}, so nothing was written"
        way = overwriting(output, "--split", "none")
        fix = f"to drop the split, make all shards again with {way}"
        raise UsageError(what, path=output, fix=fix)


def _named_beside(output: Location) -> tuple[str | None, Split | None]:
    """Find the part that a folder without a readable manifest is, if those beside it name it."""
    folder = output.absolute()
    for split in parts.recorded_splits(folder.parent).values():
        if folder.name in split.names:
            return folder.name, split
    return None, None


def _require_readable(output: Location) -> None:
    """Raise if a folder below may be a part whose split is unknown."""
    for folder in parts.packed_below(output):
        try:
            parts.last_settings(folder)
        except DamageError as error:
            fix = "give --overwrite and --split if it is a part of a split, or move it elsewhere"
            raise DamageError(error.what, path=error.path, fix=fix) from None


def _require_same(
    output: Location, split: Split | None, before: Split, top: Location, way: str | None
) -> None:
    if split is None or split == before:
        return
    # Groups stay where they are packed, so that a sync can follow another list of them.
    lists = split.parts == before.parts and split.has_groups and before.has_groups
    if lists and way == "sync":
        return
    was = " ".join(map(quoted, split_flags(before, top)))
    raise UsageError(
        f"was split with {was}, so nothing was written: another split would move samples "
        "between its parts",
        path=output,
        fix=f"give {'--sync to follow another list' if lists else was}, or make all shards again "
        f"with {overwriting(top)} and --split",
    )


def recorded(top: Location) -> tuple[Run | Unfinished, PackSettings] | None:
    """Give the last run into a folder or its parts, and the settings that pack all of it again."""
    folders = list(parts.parts_of(top).values()) or [top]
    if (last := current_run(folders)) is None:
        return None
    done = [found for found in map(_readable, folders) if found is not None]
    return last, complete(last.settings, done)


def _readable(folder: Location) -> Manifest | None:
    with suppress(DamageError):
        return manifest.load_manifest(folder)
    return None


def overwriting(top: Location, *flags: str) -> str:
    """Spell --overwrite for a folder, with flags, and with the layout that it does not keep."""
    found = recorded(top)
    return with_layout(" ".join(["--overwrite", *flags]), found[1] if found else None)
