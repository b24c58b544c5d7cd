"""What packing reports: counts that always add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.summary import Count, Summary

if TYPE_CHECKING:
    from shardwright.comparing.parts import InParts


class Counts(dict[str, Count]):
    """Records or samples by reason, the reasons in the order they were met."""

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Count one record, or several."""
        if reason in self:
            self[reason].count += count
        else:
            self[reason] = Count(count, example)

    def merge(self, others: Mapping[str, Count]) -> None:
        """Add other counts."""
        for reason, other in others.items():
            self.add(reason, other.example, other.count)

    def take(self, reason: str) -> None:
        """Count one less."""
        self[reason].count -= 1
        if not self[reason].count:
            del self[reason]

    @property
    def total(self) -> int:
        """Count all of them."""
        return sum(reason.count for reason in self.values())


@dataclass
class _Written:
    """What was written."""

    samples: int = 0
    shards: int = 0
    bytes: int = 0

    def count(self, samples: int, nbytes: int) -> None:
        """Count one shard."""
        self.samples += samples
        self.shards += 1
        self.bytes += nbytes


@dataclass
class BucketSummary(_Written):
    """What went into one bucket's shards."""

    off_shape: int = 0  # samples with an array that is not of the bucket's shape
    shard_bytes: dict[str, int] = field(default_factory=dict)  # by the shard's name


@dataclass
class PartSummary(_Written):
    """What went into the shards of one part of a split."""

    buckets: dict[str, BucketSummary] = field(default_factory=dict)

    def count_in(self, bucket: str, samples: int, nbytes: int) -> BucketSummary:
        """Count one shard of a bucket."""
        self.count(samples, nbytes)
        entry = self.buckets.setdefault(bucket, BucketSummary())
        entry.count(samples, nbytes)
        return entry


@dataclass
class SyncSummary:
    """How the shards follow the store; the counts are of samples, by reason."""

    changed: dict[str, Count]
    removed: dict[str, Count]
    new_samples: int
    moved_shards: dict[str, str]  # by old name: the last ones, where a shard has become empty
    untouched_shards: int
    new_settings: bool  # other ones are recorded than before
    buckets: dict[str, BucketSummary]  # what the folder holds afterwards, over all parts
    parts: dict[str, PartSummary]  # and by part of a split


@dataclass
class PackSummary(Summary):
    """What ``pack`` did, or under ``dry_run`` would do."""

    total_records: int
    ready_records: int
    skipped_incomplete: int
    unopened_records: int  # ready, but excluded by a limit or a bucket, or packed before
    written_samples: int
    written_shards: int
    written_bytes: int
    kept_shards: int  # shards that the resumed run had finished
    dry_run: bool
    obstacle: str | None  # under dry_run, why the run itself would stop
    replaced_shards: list[str]  # old shards that new ones of that name replaced, or would
    removed_shards: list[str]  # other old shards that were removed, or would be
    free_bytes: int | None  # None at a URL
    output_dir: str
    journal: str | None  # holds records of an interrupted derive, which are not packed
    derive_command: str | None  # merges the journal, and makes off_shape arrays fit
    pack_command: str | None  # packs all again after that, as it was packed, if it is here
    seconds: float
    skipped_by_reason: dict[str, Count]
    buckets: dict[str, BucketSummary]  # over all parts
    left_out: dict[str, Count]  # ready records, by the condition that they fail
    packed_before: int  # ready records that have a sample already
    over_limit: int  # ready records that the limit leaves out
    parts: dict[str, PartSummary]  # of a split
    synced: SyncSummary | None  # of a sync
    index_commands: list[str]  # update files of other loaders, which are of the shards before
    copies: InParts | None = None  # in several parts of a split
