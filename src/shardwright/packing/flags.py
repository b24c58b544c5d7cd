"""What a run is asked for, checked; ``build`` shares the flags that choose samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.buckets import is_bucket
from shardwright.engine import Engine
from shardwright.errors import UsageError
from shardwright.packing.choice import ids_file as file_of
from shardwright.recipes.split import Split, choose_split
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.parts import recorded_split
from shardwright.storage.urls import Location, relative_name
from shardwright.store.store import Store
from shardwright.store.where import parse
from shardwright.validate import integer, names, place_or_none

NONE = "none"  # drops what excludes samples; a file of that name is ./none


@dataclass(frozen=True)
class Request:
    """What a run of pack is asked for."""

    store: Store
    output_dir: Location
    settings: PackSettings  # as far as the flags say
    given: Mapping[str, Any]  # those of them that were given; with ``none``, empty
    way: str | None  # overwrite, resume, append or sync, where shards may be there already
    sha256: bool
    ignore_space: bool
    dry_run: bool
    progress_every: int
    engine: Engine


def read_settings(
    folder: Location,
    top: Location,
    recipe_split: Split | None,
    *,
    bucket: Iterable[str],
    where: Iterable[str],
    ids_file: object,
    exclude_ids_file: object,
    split: object,
    split_by: object,
    shard_size: object,
    limit: object,
    shuffle: bool,
    seed: object,
) -> PackSettings:
    """Check flags, and give the settings that they ask for.

    Lists are relative to a folder, and the groups of a split to that of the split, ``top``.
    """
    conditions = names("--where", where)
    if NONE in conditions and len(conditions) > 1:
        what = "--where none drops all conditions, and others are given"
        raise UsageError(what, fix="leave out one or the other")
    conditions = [text for text in conditions if text != NONE]
    for text in conditions:
        parse(text)
    lists = {"--ids-file": ids_file, "--exclude-ids-file": exclude_ids_file}
    take, leave = (
        file_of(None if file == NONE else place_or_none(flag, file), folder)
        for flag, file in lists.items()
    )
    if split == NONE:
        split = recipe_split = None
    if split is None and split_by is not None:  # another list, or column, for the same parts
        recipe_split = recorded_split(top) or recipe_split
    chosen = choose_split(split, split_by, recipe_split)
    if chosen is not None and chosen.by is not None and chosen.has_groups:
        chosen = replace(chosen, by=relative_name(Path(chosen.by), top))
    drawn = 0 if seed is None else integer("--seed", seed, least=-(1 << 63))
    return PackSettings(
        buckets=bucket_names(bucket),
        shuffle=shuffle,
        seed=drawn if shuffle else None,
        limit=None if limit is None else integer("--limit", limit),
        shard_size=1000 if shard_size is None else integer("--shard-size", shard_size, least=1),
        split=chosen,
        where=conditions,
        ids_file=take,
        exclude_ids_file=leave,
    )


def bucket_names(given: Iterable[str]) -> list[str]:
    """Check the names of buckets."""
    found = sorted(names("--bucket", given))
    for name in found:
        if not is_bucket(name):
            fix = "write WIDTHxHEIGHT, for example 832x1216"
            raise UsageError(f"--bucket {name}: not a bucket", fix=fix)
    return found
