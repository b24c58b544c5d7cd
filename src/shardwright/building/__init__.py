"""``shardwright.build``: from images straight to shards, without a store between.

``inputs`` and ``tars`` find images, ``measuring`` looks at them, ``rows`` writes them down, and
``plan`` cuts them into shards; ``planning`` does so unless a plan is there already. ``work`` gives
the shards to the devices, which make their ``samples``; ``commits`` notes each, and ``finish``
publishes all. ``from_shards`` is for shards that are built from other shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardwright import validate
from shardwright.building.summary import BuildSummary
from shardwright.entry import entry
from shardwright.errors import UsageError
from shardwright.progress import Progress
from shardwright.storage import urls

if TYPE_CHECKING:
    from shardwright.encoders.base import Encoder

__all__ = ["BuildSummary", "build"]

StrPath = str | os.PathLike[str]


@entry
def build(
    images: StrPath | Sequence[StrPath] | None = None,
    *,
    from_: StrPath | None = None,
    components: Iterable[str] = (),
    recipe: StrPath | None = None,
    output_dir: StrPath | None = None,
    captions: StrPath | None = None,
    encoders: str | Mapping[str, Encoder] | None = None,
    model: Mapping[str, str] | None = None,
    fit: str | None = None,
    decode: str | None = None,
    ids: str | None = None,
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
    append: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    engine: str = "local",
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
    dtype: str | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    compile: bool = False,  # noqa: A002 - as the flag
    sha256: bool = False,
    ignore_space: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BuildSummary:
    """Make shards of folders of images, or of tars of images, without a store between.

    Arguments are named as the flags of ``shardwright build``, and mean what they mean for
    ``derive`` and ``pack``; ``images`` may be several paths. The same call continues a build that
    was interrupted. An image that fails is left out, and counted with its reason.

    With ``from_``, a folder of shards, no images are read: ``components`` are made again from the
    captions and pictures in the shards, and all others are copied as they are.

    Raises ShardExistsError (a FileExistsError) if there are shards already, unless ``append`` or
    ``overwrite``; UsageError if an interrupted build was another one; InputMissingError (a
    FileNotFoundError) if there are no images; NoSpaceError if the shards do not fit on the disk.
    """
    # Here, so that the package and its --help work without NumPy and Pillow.
    from shardwright.building import from_shards, state
    from shardwright.building.request import Request
    from shardwright.building.run import run
    from shardwright.deriving.recipe import effective_recipe
    from shardwright.deriving.request import all_devices
    from shardwright.encoders.base import Options, device_names
    from shardwright.engine.local import cores_used
    from shardwright.engine.ray import ray_of
    from shardwright.packing.choice import NONE, read_settings
    from shardwright.recipes.keys import DECODES, FITS, IDS
    from shardwright.storage.place import place_at
    from shardwright.store.store import find_recipe

    ways = {"append": append, "overwrite": overwrite}
    for flag, value, known in (("fit", fit, FITS), ("decode", decode, DECODES), ("ids", ids, IDS)):
        validate.require_known(f"--{flag}", value, known)
    if append and overwrite:
        raise UsageError("use only one of --append and --overwrite")
    device = validate.as_text("--device", device, "auto, cpu, cpu:N, cuda, cuda:N or mps")
    file = find_recipe(recipe)
    if engine == "ray" and gpus_per_worker is None and not device.startswith("cpu"):
        gpus_per_worker = file.gpus_per_worker
    ray = ray_of(engine, ray_address, device, gpus_per_worker)
    devices = ("cpu",) if ray else device_names(device)
    for each in dtype.values() if isinstance(dtype, Mapping) else (dtype,):
        Options(dtype=each)  # which refuses what is unknown
    model = {} if model is None else model
    validate.require_mapping("--model", model, "component names to models")
    model = {
        n: validate.as_text(f"--model {n}", m, "a hub id or a folder") for n, m in model.items()
    }
    names = validate.names("--components", components)
    if from_ is not None:
        from_shards.require_alone(
            images=images,
            captions=captions,
            fit=fit,
            decode=decode,
            ids=ids,
            bucket=bucket,
            where=where,
            split=split,
            split_by=split_by,
            ids_file=ids_file,
            exclude_ids_file=exclude_ids_file,
            limit=limit,
            shard_size=shard_size,
            shuffle=shuffle,
            seed=seed,
            **ways,
        )
    elif names:
        raise UsageError("--components without --from", fix="give the shards to build from")
    output = urls.place("--output-dir", file.paths["shards"] if output_dir is None else output_dir)
    if overwrite and not place_at(output).can_replace:
        what = "is a URL, where shards are added and never replaced"
        raise UsageError(what, path=output, fix="give another --output-dir")
    if not dry_run:
        place_at(output).require_conditions()
    way = next((name for name, given in ways.items() if given), None)
    start, made = state.before(output, way)
    shards = None if from_ is None else from_shards.load(validate.place("--from", from_), output)
    if shards is not None:
        start, made = shards.recipe, shards.made
        fit, decode = start.fit, start.decode
    if ids is None and start is not None and "images.ids" not in file.origins:
        ids = start.ids
    used, choice, loaded = effective_recipe(
        file, start, made, fit=fit, decode=decode, ids=ids, models=model, choice=encoders
    )
    if ray and not isinstance(choice, str):
        fix = "name their class in the recipe (package.module:Class)"
        raise UsageError("--engine ray: encoders that are objects stay in this process", fix=fix)
    for flag, given in (("--model", model), ("--dtype", dtype)):
        for name in given if isinstance(given, Mapping) else ():
            validate.require_known(flag, name, list(used.by_name) if shards is None else names)
    copied = None if shards is None else from_shards.asked(shards, used, names, file)
    make = used.components if copied is None else copied.copying.make
    if isinstance(dtype, str):
        dtype = {component.name: dtype for component in make}
    if choice == "sketch" and model:
        what = f"--model {next(iter(model))}=...: a sketch has no model"
        raise UsageError(what, fix="leave out --model")
    if captions is None and shards is None:
        captions = file.paths.get("captions")
    settings = read_settings(
        output,
        output,
        file.split,
        bucket=bucket,
        where=where,
        ids_file=ids_file,
        exclude_ids_file=exclude_ids_file,
        split=split,
        split_by=split_by,
        shard_size=shard_size,
        limit=limit,
        shuffle=shuffle,
        seed=seed,
    )
    excluding = {"where": validate.names("--where", where), "split": split or split_by}
    lists = {"ids_file": ids_file, "exclude_ids_file": exclude_ids_file}
    for name in settings.buckets:
        validate.require_known("--bucket", name, [str(each) for each in used.buckets])
    request = Request(
        inputs=[] if copied else _inputs(images, file.paths["images"]),
        output=output,
        file=file,
        recipe=copied.copying.recipe if copied else used,
        made=made,
        encoders=choice,
        loaded=loaded,
        devices=devices if ray else all_devices(devices, choice, make),
        ray=ray,
        dtypes=dtype or {},
        models=model,
        captions=None if captions in (None, NONE) else urls.place("--captions", captions),
        forget_captions=captions == NONE,
        settings=copied.shards.settings(output) if copied else settings,
        given=None if copied else [n for n, value in {**excluding, **lists}.items() if value],
        way=way,
        sha256=sha256,
        batch_size=None
        if batch_size is None
        else validate.integer("--batch-size", batch_size, least=1),
        compile=compile,
        ignore_space=ignore_space,
        dry_run=dry_run,
        again=copied,
    )
    used_part = cores_used()
    summary = run(request, progress or Progress())
    summary.cores_used = round(used_part(), 4)
    return summary


def _inputs(given: object, default: str) -> list[urls.Location]:
    given = default if given is None else given
    given = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(given, Sequence) or not given:
        raise UsageError(f"images is {given!r}", fix="give a path, or a list of paths")
    return [urls.place("images", each) for each in given]
