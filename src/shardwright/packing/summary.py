"""What packing reports: counts that always add up."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.summary import Count, Summary


class Skipped(dict[str, Count]):
    """The skipped records by reason, the reasons in the order they were met."""

    def add(self, reason: str, example: str) -> None:
        """Count one record."""
        if reason in self:
            self[reason].count += 1
        else:
            self[reason] = Count(1, example)

    @property
    def total(self) -> int:
        """Count all skipped records."""
        return sum(reason.count for reason in self.values())


@dataclass
class BucketSummary:
    """What went into one bucket's shards."""

    samples: int = 0
    shards: int = 0
    bytes: int = 0
    off_shape: int = 0  # samples with an array that is not of the bucket's shape
    shard_bytes: dict[str, int] = field(default_factory=dict)  # by the shard's name


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
    free_bytes: int
    output_dir: str
    journal: str | None  # holds records of an interrupted derive, which are not packed
    derive_command: str | None  # merges the journal, and makes off_shape arrays fit
    seconds: float
    skipped_by_reason: dict[str, Count]
    buckets: dict[str, BucketSummary]
