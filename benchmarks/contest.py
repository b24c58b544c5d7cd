"""Contestants run as processes of their own, taking turns, so that noise falls on all alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Command = list[str | Path]

PYTHON = sys.executable
SHARDWRIGHT = (PYTHON, "-m", "shardwright")
OURS = "shardwright"


@dataclass(frozen=True)
class Contestant:
    """A command whose whole run is timed; one whose name starts with "limit" is not a peer."""

    name: str
    command: Command
    before: Callable[[], object] | None = None  # for this one only, such as removing its output
    times_itself: bool = False  # prints the seconds that count, which leave its start out


@dataclass(frozen=True)
class Question:
    """Some contestants doing the same work."""

    name: str
    contestants: Sequence[Contestant]
    work: int  # how many of the unit are done in a run
    unit: str
    before: Callable[[], object] = lambda: None  # each run, for all: sync, drop caches, remove


@dataclass
class Runs:
    """What the runs of one contestant took."""

    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def ask(question: Question, rounds: int) -> dict[str, Runs]:
    """Let the contestants take turns for some rounds."""
    results = {contestant.name: Runs() for contestant in question.contestants}
    for number in range(rounds):
        for contestant in question.contestants:
            question.before()
            if contestant.before is not None:
                contestant.before()
            print(f"\r{question.name}: round {number + 1}/{rounds} {contestant.name:<30}",
                  end="", file=sys.stderr, flush=True)  # fmt: skip
            seconds, peak = timed(contestant.command, contestant.times_itself)
            results[contestant.name].seconds.append(seconds)
            results[contestant.name].peak_mb = max(results[contestant.name].peak_mb, peak)
    print("\r" + " " * 79 + "\r", end="", file=sys.stderr)
    return results


def timed(command: Command, times_itself: bool = False) -> tuple[float, float]:
    """Run a command to its end; give its seconds and its peak memory in MB."""
    started = time.perf_counter()
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE if times_itself else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    ) as process:
        assert process.stderr is not None
        complaint = process.stderr.read()
        told = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{command}: exit {process.returncode}\n{complaint.decode()[-2000:]}")
    seconds = float(told) if times_itself else seconds
    return seconds, usage.ru_maxrss / 1024


def table(question: Question, results: dict[str, Runs]) -> str:
    """Lay the results out; the ratio is our median time to the contestant's."""
    ours = results[OURS].median if OURS in results else None
    rows = [("", "median s", "spread", f"{question.unit}/s", "ours/this", "peak MB")]
    for name, runs in results.items():
        rows.append(
            (
                name,
                f"{runs.median:.2f}",
                f"{min(runs.seconds):.2f}-{max(runs.seconds):.2f}",
                f"{question.work / runs.median:,.0f}",
                f"{ours / runs.median:.2f}" if ours else "",
                f"{runs.peak_mb:.0f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:>{w}}" if i else f"{cell:<{w}}" for i, (cell, w) in
             enumerate(zip(row, widths, strict=True))) for row in rows]  # fmt: skip
    return "\n".join([f"## {question.name}", *lines])


def drop_caches() -> bool:
    """Empty the page cache, where we may."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True
