"""Contestants run as processes of their own, taking turns, so that noise falls on all alike."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.memory import Peak

Command = list[str | Path]
Case = dict[str, int | str]
Role = Literal["ours", "peer", "limit", "variant"]  # a variant: ours with something left out

PYTHON = sys.executable
SHARDWRIGHT = (PYTHON, "-m", "shardwright")
PEERS = Path(__file__).parent / "peers"
OURS = "shardwright"
FAST = "shardwright, decode = fast"
BEFORE = "shardwright 716e6b7"  # the commit before reading and batching were worked on


@dataclass(frozen=True)
class Contestant:
    """A command whose whole run is timed."""

    name: str
    command: Command
    role: Role = "peer"
    times_itself: bool = False  # prints {"seconds": …}, which leaves its start out
    exit_codes: tuple[int, ...] = (0,)  # that are a success
    rounds: int | None = None  # fewer than the others take part in, where a run takes a minute


@dataclass(frozen=True)
class Question:
    """Some contestants doing the same work."""

    name: str
    case: Case  # what is special about it, such as {"samples": 3000, "cache": "warm"}
    contestants: Sequence[Contestant]
    work: int  # how many of the unit are done in a run
    unit: str
    before: Callable[[], object] = lambda: None  # each run: remove output, warm or drop caches


@dataclass
class Runs:
    """What the runs of one contestant took."""

    role: Role
    seconds: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    idle: list[float] = field(
        default_factory=list
    )  # the part of the time an encoder, or a loop that trains, waited
    cpu: list[float] = field(default_factory=list)  # seconds of the processor, of all processes
    difference: list[float] = field(default_factory=list)  # from the exact pixels, of 255
    fill: list[float] = field(default_factory=list)  # mean size of the batches
    recall: list[float] = field(default_factory=list)  # the part of the planted ones that is found
    search: list[float] = field(default_factory=list)  # seconds of a search in all captions
    files: list[float] = field(default_factory=list)  # that were made
    written_mb: list[float] = field(default_factory=list)  # of these files

    def median(self, measure: str = "seconds") -> float:
        """Give the median of a measure; of memory the most that was seen."""
        values: list[float] = getattr(self, measure)
        return max(values) if measure == "peak_mb" else statistics.median(values)


@dataclass
class Answer:
    """A question and what came of it: all that is kept."""

    question: str
    case: Case
    work: int
    unit: str
    runs: dict[str, Runs]
    load: float  # of the machine just before, which tells whether others were at work
    took: float  # seconds in all, with preparing
    command: str = ""  # of the run in which it was asked
    commit: str | None = None

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Answer:
        runs = {name: Runs(**one) for name, one in given["runs"].items()}
        return cls(**{**given, "runs": runs})

    @property
    def title(self) -> str:
        """Say what was asked."""
        return f"{self.question}: {', '.join(_words(*item) for item in self.case.items())}"

    def matches(self, question: str, case: Case) -> bool:
        """Whether this answers a question in a case, of which only a part need be given."""
        return self.question == question and case.items() <= self.case.items()

    def best(self, role: Role) -> str | None:
        """Name the fastest of a role."""
        names = [name for name, runs in self.runs.items() if runs.role == role]
        return min(names, key=lambda name: self.runs[name].median(), default=None)


def _words(name: str, value: int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,} {name.removesuffix('s') if value == 1 else name}"


def ask(question: Question, rounds: int) -> Answer:
    """Let the contestants take turns for some rounds."""
    load, began = os.getloadavg()[0], time.perf_counter()
    results = {one.name: Runs(one.role) for one in question.contestants}
    answer = Answer(
        question.name, question.case, question.work, question.unit, results, round(load, 2), 0.0
    )
    for number in range(rounds):
        for contestant in question.contestants:
            if number >= (contestant.rounds or rounds):
                continue
            question.before()
            _show(f"{answer.title}: round {number + 1} of {rounds}, {contestant.name}")
            for measure, value in timed(contestant).items():
                getattr(results[contestant.name], measure).append(value)
    _show("")
    answer.took = round(time.perf_counter() - began, 1)
    return answer


def _show(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{what:<110}\r", end="", file=sys.stderr, flush=True)


def timed(contestant: Contestant) -> dict[str, float]:
    """Run a command to its end; give its seconds, its peak memory, and what it says of itself."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in contestant.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "",  # what is installed is not compiled at every start
            "HF_HUB_OFFLINE": "1",
        },
    )
    peak = Peak(process.pid)
    peak.start()
    told, complaint = process.communicate()
    figures = {"seconds": round(time.perf_counter() - began, 4)}
    memory = peak.stop()
    if process.returncode not in contestant.exit_codes:
        raise RuntimeError(
            f"{contestant.name}: exit {process.returncode}\n{complaint.decode()[-2000:]}"
        )
    if memory is not None:
        figures["peak_mb"] = memory
    return figures | (json.loads(told) if contestant.times_itself else {})
