"""Stage 3: a store of arrays to WebDataset tar shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from shardwright.buckets import is_bucket
from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.packing.summary import BucketSummary, PackSummary
from shardwright.progress import Progress
from shardwright.validate import integer, names, place_or_none, require_switches

__all__ = ["BucketSummary", "PackSummary", "pack"]

StrPath = str | os.PathLike[str]


@entry
def pack(
    *,
    recipe: StrPath | None = None,
    derived_dir: StrPath | None = None,
    jsonl: StrPath | None = None,
    output_dir: StrPath | None = None,
    bucket: Iterable[str] = (),
    where: Iterable[str] = (),
    ids_file: StrPath | None = None,
    exclude_ids_file: StrPath | None = None,
    split: str | Mapping[str, float | str] | None = None,
    split_by: str | None = None,
    shard_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    append: bool = False,
    sync: bool = False,
    other_jsonl: bool = False,
    sha256: bool = False,
    ignore_space: bool = False,
    dry_run: bool = False,
    progress_every: int = 500,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack the ready samples of a store into tar shards, one folder per aspect bucket.

    Arguments are named as the flags of ``shardwright pack``; ``split`` may also be a mapping,
    ``{"val": 0.05}``. Raises ShardExistsError (a
    FileExistsError) before anything is written if a bucket already has shards, unless
    ``overwrite``, ``resume``, ``append`` or ``sync``; OutdatedError if packed samples are not what
    the store holds and would stay, unless ``sync``, which updates them with the settings of the
    last run where none are given; InputMissingError (a FileNotFoundError) if the store is missing.
    """
    # Here, to keep the import of the package and --help fast.
    from msgspec.structs import asdict

    from shardwright.packing.choice import ids_file as file_of
    from shardwright.packing.run import Request, run
    from shardwright.recipes.split import choose_split
    from shardwright.shards.format.manifest import PackSettings
    from shardwright.store.places import find_places
    from shardwright.store.where import parse

    ways = {"overwrite": overwrite, "resume": resume, "append": append, "sync": sync}
    switches = {"other_jsonl": other_jsonl, "sha256": sha256, "ignore_space": ignore_space}
    require_switches(shuffle=shuffle, dry_run=dry_run, **switches, **ways)
    way = [name for name, given in ways.items() if given]
    if len(way) > 1:
        raise UsageError("use only one of --overwrite, --resume, --append and --sync")
    if sync and bucket:
        listed = ", ".join(f'"{name}"' for name in _bucket_names(bucket))
        fix = f"to keep only these, give --where 'bucket in ({listed})'"
        raise UsageError("--sync follows all buckets of a folder, and --bucket names some", fix=fix)
    places = find_places(recipe, derived_dir, jsonl, output_dir)
    conditions = names("--where", where)
    for text in conditions:
        parse(text)
    drawn = 0 if seed is None else integer("--seed", seed, least=-(1 << 63))
    settings = PackSettings(
        buckets=_bucket_names(bucket),
        shuffle=shuffle,
        seed=drawn if shuffle else None,
        limit=None if limit is None else integer("--limit", limit),
        shard_size=1000 if shard_size is None else integer("--shard-size", shard_size, least=1),
        split=choose_split(split, split_by, places.split),
        where=conditions,
        ids_file=file_of(place_or_none("--ids-file", ids_file), places.store),
        exclude_ids_file=file_of(
            place_or_none("--exclude-ids-file", exclude_ids_file), places.store
        ),
    )
    given = {name: value for name, value in asdict(settings).items() if value}
    if limit is not None:
        given["limit"] = settings.limit
    if seed is not None:
        given["seed"] = drawn
    if shard_size is None:
        del given["shard_size"]
    request = Request(
        store=places.store,
        output_dir=places.shards,
        settings=settings,
        given=given,
        way=way[0] if way else None,
        **switches,
        dry_run=dry_run,
        progress_every=integer("--progress-every", progress_every, least=1),
        engine=Local.of(workers),
    )
    return run(request, progress or Progress())


def _bucket_names(given: Iterable[str]) -> list[str]:
    found = sorted(names("--bucket", given))
    for name in found:
        if not is_bucket(name):
            fix = "write WIDTHxHEIGHT, for example 832x1216"
            raise UsageError(f"--bucket {name}: not a bucket", fix=fix)
    return found
