"""Progress reports: ``Lines`` for logs, ``Bar`` for a terminal, ``Progress`` for silence."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

_LINES = 20
_MINUTE = 60


class Progress:
    """Reports nothing. Work is a series of phases, each with a total to count towards."""

    def phase(self, name: str, total: int, unit: str) -> None:
        """Begin a phase; its unit is what ``advance`` counts ("B" for bytes)."""

    def advance(self, count: int) -> None:
        """Count some of the total as done."""

    def note(self, text: str) -> None:
        """Report how far the work is, in a log."""

    def say(self, text: str) -> None:
        """Report something once."""

    def aside(self, text: str) -> None:
        """Show something that changes all the time, beside the bar."""

    def warn(self, text: str) -> None:
        """Report something that needs attention but does not stop the work."""
        self.say(f"warning: {text}")

    def close(self) -> None:
        """End the last phase."""


class Lines(Progress):
    """Plain lines, with rate and time left, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.phase("", 0, "")

    def phase(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self.started = time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count

    def note(self, text: str) -> None:
        seconds = time.monotonic() - self.started
        pace = ""
        if self.done and seconds:
            speed = self.done / seconds
            left = max(self.total - self.done, 0) / speed
            pace = f" ({rate(speed, self.unit)}, {duration(left)} left)"
        self.say(f"{self.name}: {text}{pace}")

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a log that cannot be written must not stop the work
            # In one piece, so that Ctrl-C leaves no partial line.
            print(f"{text}\n", end="", file=self.stream, flush=True)


class Milestones:
    """When a log gets a line about many equal pieces of work: twenty times, and every minute."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.lines = 0
        self.last = time.monotonic()

    def reached(self, done: int) -> bool:
        """Whether a line is due, now that so many are done."""
        lines, now = done * _LINES // self.total, time.monotonic()
        due = lines > self.lines or now - self.last >= _MINUTE
        if due:
            self.lines, self.last = lines, now
        return due


class Bar(Progress):
    """A bar with rate and time left, for a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.bar: tqdm[None] | None = None

    def phase(self, name: str, total: int, unit: str) -> None:
        from tqdm import tqdm  # here, because the other reporters do not need it

        self.close()
        tqdm.monitor_interval = 0  # with its thread beside ours, workers are not forked
        self.bar = tqdm(
            desc=name,
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            file=self.stream,
            leave=False,
            dynamic_ncols=True,
        )

    def advance(self, count: int) -> None:
        if self.bar is not None:
            self.bar.update(count)

    def aside(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(text, file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def duration(seconds: float) -> str:
    """Write a time: 42s, 3m05s, 2h10m."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def size(count: float) -> str:
    """Write a number of bytes: 512 B, 1.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # what rounds to 1000 is one of the next unit
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def rate(per_second: float, unit: str) -> str:
    """Write a rate: 12 images/s, and below one 30 images/min."""
    if unit == "B":
        return f"{size(per_second)}/s"
    each, count = ("s", per_second) if per_second >= 1 else ("min", per_second * 60)
    number = f"{count:,.0f}" if count >= 9.95 else f"{count:.2g}"
    return f"{_counted(number, unit)}/{each}"


def quantity(count: float, unit: str) -> str:
    """Write a number of anything: 1 shard, 2 shards; bytes get their prefixes."""
    return size(count) if unit == "B" else _counted(f"{count:,.0f}", unit)


def _counted(number: str, unit: str) -> str:
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"
