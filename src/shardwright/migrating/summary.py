"""The summary of a migration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.summary import Summary

if TYPE_CHECKING:
    from shardwright.store.journal import Recovered


@dataclass
class MigrateSummary(Summary):
    """What ``migrate`` did, or would do with ``dry_run``; lists hold line numbers."""

    jsonl: str
    dry_run: bool
    total_records: int = 0
    migrated_records: int = 0
    already_migrated: int = 0
    unmigrated_records: int = 0
    unmigrated_by_reason: dict[str, list[int]] = field(default_factory=dict)
    arrays_written: dict[str, int] = field(default_factory=dict)  # by component
    arrays_found: dict[str, int] = field(default_factory=dict)  # existed, with the same values
    arrays_differing: dict[str, list[int]] = field(default_factory=dict)  # existed, and stay
    jsonl_bytes_before: int = 0
    jsonl_bytes_after: int = 0
    backup: str | None = None
    recovered: Recovered | None = None
    seconds: float = 0.0
