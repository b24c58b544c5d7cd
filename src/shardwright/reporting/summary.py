"""The status of a store, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.packing.summary import SkippedReason
from shardwright.summary import Summary

if TYPE_CHECKING:
    from shardwright.store.facts import Truncated


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


@dataclass(frozen=True)
class StoreStatus(Summary):
    """What ``status`` found."""

    derived_dir: str
    jsonl: str
    total_records: int
    ready_records: int
    skipped_incomplete: int
    skipped_by_reason: dict[str, SkippedReason]
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
    next_command: str | None  # None where it is the user's choice
    next_reason: str
    seconds: float
