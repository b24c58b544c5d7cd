"""What all tests share: a small store and a place for shards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import shardwright
from shardwright.demo import demo
from shardwright.engine.local import Local
from tests.durability.soak import SOAK, Tally, properties, summed
from tests.stores import Store, make_store, record

pytest_plugins = ["tests.servers"]

# Some virtual machines announce AMX and then trap at it, which ends the process. Torch reads this
# when it is imported, so it must be set before any test.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# In the background of a shell, or under nohup, these are ignored, and every process that a test
# starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A normal run tries the same examples each time, so that it fails by a change and never by chance;
# soak looks for new ones. Nor does it fail because a machine is slow.
settings.register_profile(
    "shardwright",
    derandomize=not SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shardwright")


@pytest.fixture(scope="session", autouse=True)
def one_worker() -> Iterator[None]:
    """Where a test says nothing of workers there is one, which is this process.

    pytest has threads of its own, so others cannot be forked, and starting new ones takes longer
    than most tests. Commands in processes of their own have as many as there are cores.
    """
    of = Local.of
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Local, "of", lambda workers: of(1 if workers is None else workers))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Here nothing waits until the disk has all bytes: no test can cut its power.

    What is lost without each of the syncs is tried with disks that are made up. Commands in
    processes of their own wait as always.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of seven samples in two buckets that take turns."""
    buckets = ("1024x1024", "832x1216")
    return make_store(tmp_path / "derived", [record(f"img{n}", buckets[n % 2]) for n in range(7)])


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where shards go; not there yet."""
    return tmp_path / "shards"


@pytest.fixture(scope="session")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo; tests only read it."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    demo(folder=folder)
    shardwright.index(folder / "shards", for_=["hf"])
    return folder


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
