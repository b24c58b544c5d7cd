"""Stage 3: a store of arrays to WebDataset tar shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.packing.summary import BucketSummary, PackSummary
from shardwright.progress import Progress
from shardwright.validate import integer, names, place

__all__ = ["BucketSummary", "PackSummary", "pack"]

StrPath = str | os.PathLike[str]


@entry
def pack(
    store: StrPath | None = None,
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
    sha256: bool = False,
    ignore_space: bool = False,
    dry_run: bool = False,
    progress_every: int = 500,
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Pack the ready samples of a store into tar shards, one folder per aspect bucket.

    Arguments are named as the flags of ``shardwright pack``; ``store`` is the store, as
    ``derived_dir`` is, and ``split`` may also be a mapping, ``{"val": 0.05}``. Raises
    ShardExistsError (a FileExistsError) before anything is written if a bucket already has shards,
    unless ``overwrite``, ``resume``, ``append`` or ``sync``; OutdatedError if packed samples are
    not what the store holds and would stay, unless ``sync``, which updates them with the settings
    of the last run where none are given; InputMissingError (a FileNotFoundError) if the store is
    missing.
    """
    # Here, to keep the import of the package and --help fast.
    from shardwright.engine.ray import ray_of, tasks_on
    from shardwright.packing.choice import Request, bucket_names, read_settings
    from shardwright.packing.run import run
    from shardwright.storage.place import place_at
    from shardwright.store.store import find_places, holds_shards

    ways = {"overwrite": overwrite, "resume": resume, "append": append, "sync": sync}
    switches = {"sha256": sha256, "ignore_space": ignore_space}
    way = [name for name, given in ways.items() if given]
    if len(way) > 1:
        raise UsageError("use only one of --overwrite, --resume, --append and --sync")
    if sync and bucket:
        listed = ", ".join(f'"{name}"' for name in bucket_names(bucket))
        fix = f"to keep only these, give --where 'bucket in ({listed})'"
        raise UsageError("--sync follows all buckets of a folder, and --bucket names some", fix=fix)
    if store is not None and derived_dir is not None:
        raise UsageError("STORE with --derived-dir", fix="give one of them")
    folder = derived_dir if store is None else place("STORE", store)
    if folder is not None and holds_shards(place("--derived-dir", folder)):
        fix = "give the store that is packed, and the folder of the shards with --output-dir"
        raise UsageError("is a shard folder", path=folder, fix=fix)
    found, output, file = find_places(recipe, folder, jsonl, output_dir)
    conditions = names("--where", where)
    settings = read_settings(
        found.folder,
        output,
        file.split,
        bucket=bucket,
        where=conditions,
        ids_file=ids_file,
        exclude_ids_file=exclude_ids_file,
        split=split,
        split_by=split_by,
        shard_size=shard_size,
        limit=limit,
        shuffle=shuffle,
        seed=seed,
    )
    flags = {
        "buckets": settings.buckets,
        "where": conditions,
        "ids_file": ids_file,
        "exclude_ids_file": exclude_ids_file,
        "split": split or split_by,  # the recipe's is for a new folder
        "limit": limit,
        "shard_size": shard_size,
        "shuffle": shuffle or None,
    }
    given = {n: getattr(settings, n) for n, value in flags.items() if value not in (None, [])}
    if seed is not None:  # also for shuffled shards that a sync goes on with
        given["seed"] = int(seed)
    ray, told = ray_of(engine, ray_address), progress or Progress()
    if (overwrite or sync) and not place_at(output).can_replace:
        what = f"--{way[0]}: is a URL, where shards are added and never replaced"
        raise UsageError(what, path=output, fix="give another --output-dir")
    if not dry_run:
        place_at(output).require_conditions()
    writes = [] if dry_run else [output]
    with tasks_on(ray, workers, told.warn, writes=writes, reads=[found.folder]) as tasks:
        return run(
            Request(
                store=found,
                output_dir=output,
                settings=settings,
                given=given,
                way=way[0] if way else None,
                **switches,
                dry_run=dry_run,
                progress_every=integer("--progress-every", progress_every, least=1),
                engine=tasks,
            ),
            told,
        )
