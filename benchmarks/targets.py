"""What we aim at, as data: ratios of one run on one machine, with checksums and fsync on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.build import BOTH, ONE, PURE
from benchmarks.contest import BEFORE, FAST, OURS, Answer, Case
from benchmarks.derive import ALONE
from benchmarks.pack import PLAIN, SYNCED, TAR, WRITER
from benchmarks.read import LOOSE, SEQUENTIAL, WEBDATASET


@dataclass(frozen=True)
class Target:
    """A bound on a figure of ours: as it is, or in relation to that of another contestant.

    Times are in relation to the work done, so that two sizes can be compared as well.
    """

    says: str
    question: str
    case: Case = field(default_factory=dict)  # of several answers the one with the most work counts
    measure: str = "seconds"
    against: str | None = None
    against_case: Case | None = None
    at_most: float | None = None
    at_least: float | None = None  # of the speed, which is the inverse of the time
    of: str = OURS

    def figure(self, answers: Sequence[Answer]) -> float | None:
        """Give the figure, or nothing where it was not measured."""
        ours = self._cost(answers, self.of, self.case)
        if self.against is None or ours is None:
            return ours
        theirs = self._cost(answers, self.against, self.against_case or self.case)
        if theirs is None:
            return None
        return theirs / ours if self.at_least is not None else ours / theirs

    def met(self, figure: float) -> bool:
        """Whether a figure keeps within the bound."""
        if self.at_least is not None:
            return figure >= self.at_least
        return self.at_most is None or figure <= self.at_most

    def bound(self) -> str:
        """Say the bound in words."""
        at_least = self.at_least is not None
        return f"at least {self.at_least:g}" if at_least else f"at most {self.at_most:g}"

    def _cost(self, answers: Sequence[Answer], name: str, case: Case) -> float | None:
        known = [
            answer
            for answer in answers
            if answer.matches(self.question, case) and name in answer.runs
        ]
        answer = max(known, key=lambda one: one.work, default=None)
        if answer is None or not getattr(answer.runs[name], self.measure):
            return None
        work = answer.work if self.measure in ("seconds", "cpu") else 1
        return answer.runs[name].median(self.measure) / work


_PACK: Case = {"cache": "warm", "workers": 2}
_SCAN: Case = {"records": 100_000}
_MILLION: Case = {"records": 1_000_000}
_READ: Case = {"cache": "warm", "workers": 1}
_DERIVE: Case = {"encoders": "simulated GPU"}
_DEVICES: Case = {"encoders": "2 devices that compute on a core each"}
_LARGE: Case = {"megapixels": 12, "workers": 1}
_ROWS: Case = {"rows": 10_000_000}
_VECTORS: Case = {"vectors": 1_000_000}

TARGETS = (
    Target("pack: time to GNU tar's", "pack", _PACK, against=TAR, at_most=0.5),
    Target("pack: time to the plain script's", "pack", _PACK, against=PLAIN, at_most=0.25),
    Target("pack: time to ShardWriter's", "pack", _PACK, against=WRITER, at_most=0.15),
    Target("pack: time to a synced copy's", "pack", _PACK, against=SYNCED, at_most=1.25),
    Target("scan of 100,000: speed to the plain script's", "scan", _SCAN, "seconds",
           PLAIN, at_least=8),
    Target("scan of 100,000: memory to the plain script's", "scan", _SCAN, "peak_mb",
           PLAIN, at_most=0.25),
    Target("scan of 1,000,000: memory in MB", "scan", _MILLION, "peak_mb", at_most=1000),
    Target("scan of 1,000,000: time a record to that of 100,000", "scan", _MILLION, "seconds",
           OURS, _SCAN, at_most=1.2),
    Target("verify, warm: speed to a sequential read's", "verify", {"cache": "warm"},
           against=SEQUENTIAL, at_least=0.7),
    Target("read, warm: speed to webdataset's", "read", _READ, against=WEBDATASET, at_least=5),
    Target("read, warm: speed to loose files'", "read", _READ, against=LOOSE, at_least=2),
    Target("read, cold: speed to a sequential read's", "read", {"cache": "cold", "workers": 1},
           against=SEQUENTIAL, at_least=0.7),
    Target("reading of 12 MP: processor time to 716e6b7's", "reading", _LARGE, "cpu",
           BEFORE, at_most=0.7),
    Target("reading of 12 MP, fast: processor time to 716e6b7's", "reading", _LARGE, "cpu",
           BEFORE, at_most=0.35, of=FAST),
    Target("reading of 12 MP: speed of two workers to one's", "reading",
           {"megapixels": 12, "workers": 2}, "seconds", OURS, _LARGE, at_least=1.7),
    Target("derive: part of the time the encoders wait", "derive", _DERIVE, "idle", at_most=0.05),
    Target("derive: speed to that of the encoders alone", "derive", _DERIVE, against=ALONE,
           at_least=0.95),
    Target("derive of 12 MP, fast: speed to 716e6b7's", "derive", {"megapixels": 12},
           against=BEFORE, at_least=2.5, of=FAST),
    Target("build: part of the time the encoders wait", "build", _DERIVE, "idle", at_most=0.05),
    Target("build: time to that of derive and pack", "build", _DERIVE, against=BOTH, at_most=1),
    Target("build of 256 pixels: time to decoding and encoding alone", "build",
           {"size": "256 pixels"}, against=PURE, at_most=1.15),
    Target("build of 1 megapixel: time to decoding and encoding alone", "build",
           {"size": "1 megapixel"}, against=PURE, at_most=1.15),
    Target("build on two devices that compute: speed to one's", "build", _DEVICES,
           against=ONE, at_least=1.7),
    Target("planning of 10,000,000: seconds a row", "planning", _ROWS, at_most=0.00002),
    Target("planning of 10,000,000: memory in MB", "planning", _ROWS, "peak_mb", at_most=1500),
    Target("fill, fit original: images in a batch of 8", "fill", {"fit": "fit original"}, "fill",
           at_least=3),
    Target("fill, fit bucket: images in a batch of 8", "fill", {"fit": "fit bucket"}, "fill",
           at_least=7.5),
    Target("duplicates of 1,000,000: seconds a vector", "duplicates", _VECTORS, at_most=0.0003),
    Target("duplicates of 1,000,000: memory in MB", "duplicates", _VECTORS, "peak_mb",
           at_most=8000),
    Target("duplicates of 1,000,000: part that is found", "duplicates", _VECTORS, "recall",
           at_least=0.99),
    Target("look at 1,000,000: seconds a sample to the first view", "look", {"samples": 1_000_000},
           at_most=0.00002),
    Target("start: seconds of --help", "start", {"command": "--help"}, at_most=0.2),
)  # fmt: skip
