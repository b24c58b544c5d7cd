"""What verifying reports: each thing that is wrong, where it is, and its fix.

A fault is what a tar or a sample is found to have; a finding says in which file, and what to do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from shardwright.text import shown

PASS, NEEDS_INDEX, FAIL = "pass", "needs index", "fail"  # the verdicts on a loader


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; without ``damage`` it is only a note, and nothing is lost by it."""

    kind: str
    file: str
    line: int | None  # where the file is the JSONL
    what: str
    fix: str
    damage: bool = True
    sample: str | None = None  # where the file is a shard
    member: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        if self.sample is not None:
            place += f", sample {self.sample}"
        if self.member is not None:
            place += f", member {self.member}"
        return shown(f"{place}: {self.what}; {self.fix}")  # names may hold anything


class Fault(NamedTuple):
    """One thing that is wrong with a tar, with a sample of it, or with a member of that."""

    kind: str
    what: str
    member: str | None = None
    sample: str | None = None
    damage: bool = True
    fix: str | None = None  # where it is not that of the file

    def finding(self, file: str, fix: str) -> Finding:
        """Say it of a file."""
        kind, what, member, sample, damage, own = self
        return Finding(kind, file, None, what, own or fix, damage, sample, member)


@dataclass(frozen=True)
class VerifyReport:
    """What ``verify`` looked at, and all it found."""

    path: str
    read_data: bool
    checked: dict[str, int]  # how many of what: records and arrays, or shards and samples
    bytes: int  # of the arrays or shards that were there to be checked
    findings: list[Finding]
    seconds: float
    loaders: dict[str, str] | None = None  # pass, needs index or fail, by loader, if asked for

    @property
    def damaged(self) -> bool:
        """Whether any finding is more than a note."""
        return any(finding.damage for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Count the findings of each kind."""
        return dict(Counter(finding.kind for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        return {"damaged": self.damaged, "counts": self.counts, **asdict(self)}
