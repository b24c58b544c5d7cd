"""What all tests share: a small store and a place for shards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.durability.soak import SOAK, Tally, properties, summed
from tests.stores import Store, make_store, record

# Some virtual machines announce AMX and then trap at it, which ends the process. Torch reads this
# when it is imported, so it must be set before any test.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# In the background of a shell, or under nohup, these are ignored, and every process that a test
# starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A normal run tries the same examples each time, so that it fails by a change and never by chance;
# soak looks for new ones.
settings.register_profile("shardwright", derandomize=not SOAK)
settings.load_profile("shardwright")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of seven samples in two buckets that take turns."""
    buckets = ("1024x1024", "832x1216")
    return make_store(tmp_path / "derived", [record(f"img{n}", buckets[n % 2]) for n in range(7)])


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where shards go; not there yet."""
    return tmp_path / "shards"


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """A count of what a test has tried."""

    def count(**counts: int) -> None:
        request.node.user_properties += properties(counts)

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    if counts := summed(entry for report in reports for entry in report.user_properties):
        terminalreporter.section("tried, and survived")
        for name, count in sorted(counts.items()):
            terminalreporter.line(f"{count:9,} {name}")
