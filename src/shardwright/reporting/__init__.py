"""The status of a store: what is ready, what is missing, and what to do next."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.engine.local import Local
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.summary import Count, Summary
from shardwright.validate import place, place_or_none

if TYPE_CHECKING:
    from shardwright.store.facts import Attention, Quality, Truncated

__all__ = [
    "BucketStatus",
    "ComponentStatus",
    "Exported",
    "PackedStatus",
    "StoreStatus",
    "status",
]

StrPath = str | os.PathLike[str]


@dataclass
class ComponentStatus:
    """The arrays of one component; the first three count images that have a record."""

    complete: int = 0
    missing: int = 0
    invalid: int = 0
    orphaned: int = 0  # arrays without a record
    bytes: int = 0  # of all its arrays, valid or not


@dataclass
class BucketStatus:
    """The samples of one bucket."""

    ready: int = 0
    not_ready: int = 0
    shard_bytes: int = 0


@dataclass(frozen=True)
class PackedStatus:
    """What one shard folder holds."""

    samples: int
    ready: int  # of the samples, those that are ready in the store
    unfinished: bool  # whether its last run has not ended
    outdated: int  # samples that the store has changed or removed since
    other: str | None = None  # what it holds, if that is not of this store as it is now


@dataclass(frozen=True)
class Exported:
    """The table that was written."""

    file: str
    rows: int


@dataclass(frozen=True)
class Outlook:
    """What ``derive --update`` would do with the images of a store."""

    images: str  # the folder
    new: Count  # to be derived
    changed: Count  # images, to be derived again
    captions: Count  # changed, to be encoded again
    renamed: Count
    gone: Count  # to be removed with --prune
    elsewhere: Count  # not found, but may not have been below the folder, so not to be removed
    captions_file: str | None = None  # that was read: of the recipe, else of the last derive
    captions_problem: str | None = None  # why it could not be read
    captions_gone: bool = False  # whether that is because it is not there
    # Images of which other columns of the captions file have changed, to be updated in the record.
    columns: Count = field(default_factory=lambda: Count(0, ""))
    undecided: list[str] = field(default_factory=list)  # the paths of those elsewhere
    prune_command: str | None = None  # that removes these


@dataclass
class StoreStatus(Summary):
    """What ``status`` found."""

    derived_dir: str
    jsonl: str
    total_records: int
    ready_records: int
    skipped_incomplete: int
    skipped_by_reason: dict[str, Count]
    stage1_records: int
    components: dict[str, ComponentStatus]
    buckets: dict[str, BucketStatus]
    jsonl_bytes: int
    store_bytes: int
    shards: int  # that packing would write
    shard_bytes: int  # of these, exactly
    leftovers: list[str]
    packed: dict[str, PackedStatus]  # by folder
    unfinished: dict[str, int]  # components of a recompute that is not in use yet: images so far
    failures: int  # images that could not be derived
    failures_file: str | None  # where they are listed, if there are any
    changed_images: list[str]  # since they were encoded; their arrays are from the old ones
    gone_images: list[str]
    unknown_images: int  # whose file is not on record, so that changes go unnoticed
    truncated: dict[str, Truncated]  # captions that were cut, by component
    quality: Quality  # what is known of it
    attention: list[Attention]  # what of these two somebody should look at
    update: Outlook | None  # None if the folder of the images is not known
    seconds: float
    next_command: str | None = None  # None where it is the user's choice
    next_reason: str = ""
    exported: Exported | None = None
    further_updates: list[Outlook] = field(default_factory=list)  # of other folders of images


@entry
def status(
    path: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    derived_dir: StrPath | None = None,
    jsonl: StrPath | None = None,
    output_dir: StrPath | None = None,
    export: StrPath | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> StoreStatus:
    """Report what is ready in a store, what is missing, and what to do next.

    Arguments are named like the flags of ``shardwright status``; ``path`` is the store, as
    ``derived_dir`` is. Reads the metadata, the header of every array, and the indexes of the shards
    in ``output_dir`` and in the folders directly below it. Changes nothing; but ``export`` names a
    .parquet, .csv or .jsonl file to write, with a row for each image.
    """
    # Here, so that importing the package and printing --help are quick.
    from shardwright.reporting.export import require_table
    from shardwright.reporting.store_status import report_on
    from shardwright.store import commands
    from shardwright.store.store import find_places, holds_shards, is_store

    if path is not None and derived_dir is not None:
        raise UsageError("PATH with --derived-dir", fix="give one of them")
    engine = Local.of(workers)
    folder = derived_dir if path is None else place("path", path)
    store, shards, file = find_places(recipe, folder, jsonl, output_dir)
    derived = store.folder
    if not derived.exists():
        fix = f"give another --derived-dir, or make it with {commands.derive(store)}"
        raise InputMissingError("no such folder", path=derived, fix=fix)
    if not derived.is_dir():
        raise UsageError("is a file", path=derived, fix="give the folder of a store")
    if holds_shards(derived):
        fix = (
            f"give the store it was packed from, or run {commands.command('verify', str(derived))}"
        )
        raise UsageError("is a shard folder", path=derived, fix=fix)
    if path is not None and not (is_store(derived) or store.state.is_dir()):
        fix = "give the folder that derive or migrate wrote"
        raise UsageError("is not a store", path=derived, fix=fix)
    table = place_or_none("--export", export)
    if table is not None:
        require_table(table, store)
    captions = place_or_none("[paths] captions", file.paths.get("captions"))
    return report_on(store, shards, engine, progress or Progress(), table, captions)
