"""What migrating reports: the books, which always balance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.store.journal import Recovered


@dataclass
class MigrateSummary:
    """What ``migrate`` did, or under ``dry_run`` would do; lines are given by their numbers."""

    jsonl: str
    dry_run: bool
    total_records: int = 0
    migrated_records: int = 0
    already_migrated: int = 0
    unmigrated_records: int = 0
    unmigrated_by_reason: dict[str, list[int]] = field(default_factory=dict)
    arrays_written: dict[str, int] = field(default_factory=dict)  # by component
    arrays_found: dict[str, int] = field(default_factory=dict)  # that were there, and are the same
    arrays_differing: dict[str, list[int]] = field(default_factory=dict)  # were there; they stay
    jsonl_bytes_before: int = 0
    jsonl_bytes_after: int = 0
    backup: str | None = None
    recovered: Recovered | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        return asdict(self)
