"""How work reports itself: lines for logs, a bar for people, nothing for libraries."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.progress import Bar, Lines, Progress, duration, quantity, rate, size


def work(progress: Progress) -> None:
    progress.phase("scan", 1000, "B")
    progress.advance(400)
    progress.note("total_records=4")
    progress.warn("line 3: not json; skipped")
    progress.phase("write", 2, "samples")
    progress.advance(2)
    progress.note("2/2 shards")
    progress.close()


def test_progress_is_silent_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    work(Progress())
    assert capfd.readouterr() == ("", "")


def test_lines_have_phase_text_rate_and_time_left() -> None:
    stream = io.StringIO()
    work(Lines(stream))
    first, warning, last = stream.getvalue().splitlines()
    assert re.fullmatch(r"scan: total_records=4 \(.* [kMG]?B/s, \d+s left\)", first)
    assert warning == "warning: line 3: not json; skipped"
    assert re.fullmatch(r"write: 2/2 shards \([\d,]+ samples/s, 0s left\)", last)


def test_a_line_before_any_progress_has_no_rate() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.phase("scan", 0, "B")
    lines.note("total_records=0")
    assert stream.getvalue() == "scan: total_records=0\n"


class Interrupted(io.StringIO):
    """A log in the midst of whose first write Ctrl-C is pressed."""

    def write(self, text: str) -> int:
        super().write(text)
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_line_without_its_end() -> None:
    stream = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Lines(stream).say("1/2 shards")
    assert stream.getvalue() == "1/2 shards\n"


def test_a_bar_is_drawn_over_itself_and_gone_at_the_end() -> None:
    stream = io.StringIO()
    bar = Bar(stream)
    work(bar)
    drawn = stream.getvalue()
    assert "scan:   0%|" in drawn
    assert "write:   0%|" in drawn
    assert "total_records" not in drawn  # notes are for logs
    assert "warning: line 3: not json; skipped\n" in drawn
    assert bar.bar is None
    bar.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (42.4, "42s"),
        (59.7, "1m00s"),
        (185, "3m05s"),
        (7800, "2h10m"),
        (360000, "100h00m"),
    ],
)
def test_times_are_written_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, "1 kB"),
        (1_440_000_000, "1.44 GB"),
        (999_900, "1 MB"),
        (2_500_000_000_000, "2.5 TB"),
        (2_500_000_000_000_000, "2,500.0 TB"),
    ],
)
def test_sizes_are_written_as_people_do(count: float, text: str) -> None:
    assert size(count) == text


@given(st.floats(0, 1e16))
def test_sizes_are_short_and_plain(count: float) -> None:
    assert re.fullmatch(r"[\d,.]+ (B|[kMGT]B)", size(count))


@pytest.mark.parametrize(
    ("per_second", "unit", "text"),
    [
        (12345.6, "samples", "12,346 samples/s"),
        (9.96, "images", "10 images/s"),
        (3.14, "images", "3.1 images/s"),
        (1, "images", "1 image/s"),
        (0.9, "images", "54 images/min"),
        (0.05, "images", "3 images/min"),
        (0.004, "images", "0.24 images/min"),
        (1_500_000, "B", "1.5 MB/s"),
        (0.4, "B", "0 B/s"),
    ],
)
def test_rates_below_one_per_second_are_given_per_minute(
    per_second: float, unit: str, text: str
) -> None:
    assert rate(per_second, unit) == text


def test_other_quantities_are_counted() -> None:
    assert quantity(12345.6, "samples") == "12,346 samples"
    assert quantity(1, "shards") == "1 shard"
    assert quantity(0.7, "samples") == "1 sample"
    assert quantity(0, "shards") == "0 shards"
    assert quantity(12345.6, "B") == "12.3 kB"
