"""What verifying reports: each finding is one thing that is wrong, with its file and fix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shardwright.summary import Summary
from shardwright.text import shown

OUTDATED = "outdated"  # the kind of a finding: the store, or the image, has changed since
EMPTY_OUTDATED = "empty_outdated"  # another: so has the store's empty caption
NOT_COMPARED = "not_compared"  # another: there is no array or image to compare with
IDENTICAL, ALIKE = "identical_in_two_parts", "alike_in_two_parts"  # others: copies in a split
IMAGE_DIFFERS = "image_differs"  # another: a member is not what its image gives
PASS, NEEDS_INDEX, FAIL = "pass", "needs index", "fail"  # the verdicts on a loader


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; without ``damage`` it is only a warning, and no data is lost."""

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


@dataclass
class VerifyReport(Summary):
    """What ``verify`` checked and found."""

    path: str
    read_data: bool
    checked: dict[str, int] = field(default_factory=dict)  # how many of what
    bytes: int = 0  # of the arrays or shards that were checked
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    outdated: int = 0  # samples whose record, arrays or image have changed since
    not_compared: int = 0  # members whose array or image is missing
    recomputed: int | None = None  # samples that were compared with their images, if asked for
    not_searched: str | None = None  # why near-duplicates in two parts were not, if they were not
    loaders: dict[str, str] | None = None  # pass, needs index or fail, by loader, if asked for

    @property
    def damaged(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.damage for finding in self.findings)

    @property
    def changed(self) -> bool:
        """Whether the store or the images have changed since, or some of them are missing."""
        return bool(self.outdated or self.not_compared or EMPTY_OUTDATED in self.counts)

    @property
    def counts(self) -> dict[str, int]:
        """Count the findings of each kind."""
        return dict(Counter(finding.kind for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts, lists and numbers, with what follows from them."""
        return {"damaged": self.damaged, "counts": self.counts, **super().to_dict()}
