"""What a look at a store reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardwright.packing.summary import SkippedReason

if TYPE_CHECKING:
    from shardwright.store.facts import Truncated


@dataclass
class ComponentStatus:
    """How it stands with one component; the first three count the images of the records."""

    complete: int = 0
    missing: int = 0
    invalid: int = 0
    orphaned: int = 0  # arrays that no record speaks of
    bytes: int = 0  # of all its arrays, sound or not


@dataclass
class BucketStatus:
    """How it stands with one bucket."""

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
class StoreStatus:
    """What ``status`` saw."""

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
    shards: int  # that packing would write,
    shard_bytes: int  # exactly
    leftovers: list[str]
    packed: dict[str, PackedStatus]  # by folder
    unfinished: dict[str, int]  # components that are being recomputed: images so far, not in use
    failures: int  # images that could not be derived
    failures_file: str | None  # where they are listed, if there are any
    changed_images: list[str]  # since they were encoded; their arrays show the old ones
    gone_images: list[str]
    unknown_images: int  # whose file is not on record, so that a change cannot be noticed
    truncated: dict[str, Truncated]  # captions that were cut, by component
    next_command: str | None  # None where it is the user's choice
    next_reason: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        return asdict(self)
