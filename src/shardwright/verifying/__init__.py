"""``shardwright.verify``: checks a store or a shard folder, and lists what is wrong.

Shards: ``shards`` → ``folder`` → ``shard`` → ``sample`` → ``against_store``, or ``against_images``;
and ``loader_rules``.
A store: ``store``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.layout import JSONL_NAME
from shardwright.progress import Progress
from shardwright.storage.urls import Location, local, place
from shardwright.store.findings import Finding, VerifyReport
from shardwright.validate import as_text, integer, place_or_none

__all__ = ["Finding", "VerifyReport", "verify"]

StrPath = str | os.PathLike[str]

_SAMPLES = 16  # that are recomputed


@entry
def verify(
    path: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    read_data: bool = False,
    against: StrPath | None = None,
    samples: int | None = None,
    device: str | None = None,
    loaders: bool = False,
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a store or a shard folder, also one at a URL, and list what is wrong with its fix.

    Without ``read_data`` this checks the records, array headers and sizes of a store, or the names,
    sizes, indexes and records of a shard folder and the first and last header of each shard; with
    it, every byte. ``against`` names the store that shards were packed from, to compare each member
    with its source; what the store has changed since is outdated, which is no damage. Or it names
    the images that they show, a folder or a tar: then ``samples`` of them (16) are recomputed on
    ``device`` (auto) as the manifest says they were made, and compared within its rounding. Raises
    UsageError if another model is here. ``loaders`` applies the rules of every loader to the
    shards. ``engine="ray"`` reads on all cores of a cluster. Nothing is changed. Damage is
    reported, not raised: see ``damaged``, ``outdated`` and ``findings``.
    """
    # Imported where they are needed, for a quick start.
    from shardwright.engine.ray import ray_of, tasks_on
    from shardwright.storage.place import place_at
    from shardwright.store.store import Store, find_recipe, is_store

    file = find_recipe(recipe)
    target = place("path", file.paths["store"] if path is None else path)
    source = place_or_none("--against", against)
    count = _SAMPLES if samples is None else integer("--samples", samples, least=1)
    images = None if source is None or is_store(source) else source
    if images is None:
        for flag, given in (("--samples", samples), ("--device", device)):
            if given is not None:
                fix = "give --against the images that the shards show"
                raise UsageError(f"{flag} is for samples that are recomputed", fix=fix)
    ray, progress = ray_of(engine, ray_address), progress or Progress()
    if not place_at(target).reads_are_requests:  # else only if nothing is found there
        require_folder(target)
    seen = [target, *([] if source is None else [source])]
    report, started = VerifyReport(str(target), read_data), time.monotonic()
    with tasks_on(ray, workers, progress.warn, reads=seen) as where:
        if is_store(target):
            if source is not None or loaders:
                flag = "--loaders" if source is None else "--against"
                raise UsageError("is a store", path=target, fix=f"{flag} is for a shard folder")
            from shardwright.verifying.store import verify_store

            verify_store(Store.at(local(target), given=file), report, where, progress)
        else:
            from shardwright.verifying.folder import read_folder
            from shardwright.verifying.shards import add_loaders, complete_fixes, verify_shards

            folders = [read_folder(name, path) for name, path in shard_folders(target).items()]
            recomputing = None
            if images is not None:
                from shardwright.verifying.against_images import Recomputing

                on, source = _device(device), None
                recomputing = Recomputing(report, folders, images, count, file, on, progress)
            verify_shards(report, target, folders, source, where, progress)
            if recomputing is not None:
                recomputing.compare()
            if loaders:
                add_loaders(report, folders, progress)
            complete_fixes(report, target, source)
    report.seconds = round(time.monotonic() - started, 3)
    return report


def require_folder(path: Location) -> None:
    """Raise if there is no folder."""
    if not path.exists():
        raise InputMissingError("no such folder", path=path, fix="give a store or a shard folder")
    if not path.is_dir():
        fix = "give the store or the shard folder that it is in"
        raise UsageError("is a file", path=path, fix=fix)


def shard_folders(target: Location) -> Mapping[str, Location]:
    """Give the parts of a split folder by name, or a shard folder by a blank name.

    It may be another tool's; raise if there are no shards at all.
    """
    from shardwright.shards.format.parts import is_packed, parts_of
    from shardwright.storage.place import place_at

    packed = is_packed(target)
    parts = {} if packed else parts_of(target)
    if not (packed or parts or any(place_at(target).list(".tar"))):
        require_folder(target)
        what = f"is not a store (no {JSONL_NAME}) and not a shard folder (no .tar)"
        fix = "give the folder that derive, migrate or pack wrote"
        raise UsageError(what, path=target, fix=fix)
    return parts or {"": target}


def _device(given: object) -> str:
    """Read ``--device``, which is one."""
    from shardwright.encoders.base import device_names

    text = as_text("--device", "auto" if given is None else given, "auto, cpu, cuda, cuda:N or mps")
    first, *others = device_names(text)
    if others:
        raise UsageError(f"--device {text}: verify uses one device", fix=f"give {first}")
    return first
