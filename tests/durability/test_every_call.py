"""A fault at a call of the disk, then the command again: the same bytes.

In process; under soak exhaustive: each command is run as often as it has calls, for each kind of
fault. The normal run takes some calls of each, for another kind of fault others.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwright import NoSpaceError, StorageError
from shardwright.deriving import pipeline
from shardwright.storage.files import using
from tests.durability.folders import (
    JOURNALS,
    assert_arrays_are_whole,
    assert_manifest_speaks_true,
    assert_shards_are_whole,
    shard_names,
)
from tests.durability.scenarios import LARGE, NAMES, PACKING, Scenario, scenario
from tests.durability.soak import SOAK, Tally, some
from tests.faults import Call, FailingDisk, Killed, KillingDisk, WatchedDisk, contents

pytestmark = pytest.mark.usefixtures("one_order")

FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
# The commands get every fault; what varies them gets the likeliest, and all under soak.
COMMANDS = ("pack", "append", "overwrite", "resume", "migrate")
LIKELIEST = {"derive": [("EIO", True), ("ENOSPC", False)]}
LIKELIEST["build"] = LIKELIEST["derive"]
LIKELIEST |= {name: [("ENOSPC", True)] for name in PACKING}
EVERY = NAMES + LARGE if SOAK else NAMES
_CALLS = 4  # of each run
TRIALS = [
    (name, error, once)
    for name in EVERY
    for error in FAULTS
    for once in (True, False)
    if SOAK or name in COMMANDS or (error, once) in LIKELIEST.get(name, [])
]


def assert_sound(case: Scenario) -> None:
    """Nothing under a final name is half written."""
    assert_manifest_speaks_true(case.output)
    assert_arrays_are_whole(case.output, case.start, case.expected)
    assert_shards_are_whole(case.output, case.start, case.expected)


def assert_ends_right(case: Scenario, label: str) -> None:
    """Run the command that follows a fault, and compare."""
    with using(WatchedDisk()):
        case.run(case.again)
    found = contents(case.output)
    assert found.keys() == case.expected.keys(), label
    assert found == case.expected, label


@pytest.mark.parametrize("name", ["derive twenty", "derive more", "recompute"])
def test_a_slow_machine_makes_the_same_calls_in_the_same_order(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scenario(name, folder)
    expected = calls(case)
    assert len(expected) == case.calls
    slow = itertools.count(step=5).__next__  # five seconds between any two looks at the clock
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=slow))
    for _ in range(3):
        assert calls(case) == expected


def calls(case: Scenario) -> list[Call]:
    """Give the calls of an unbroken run."""
    case.reset()
    with using(disk := WatchedDisk()):
        case.run(case.first)
    return disk.calls


@pytest.mark.parametrize("name", EVERY)
def test_a_kill_at_any_call_is_made_good_by_the_next_run(
    name: str, folder: Path, tally: Tally
) -> None:
    case = scenario(name, folder)
    kills = some(range(1, case.calls + 1), _CALLS)
    tally(kills_at_a_call=len(kills))
    for at in kills:
        case.reset()
        with using(disk := KillingDisk(at)), pytest.raises(Killed):
            case.run(case.first)
        assert_sound(case)
        assert_ends_right(case, f"killed at call {at}, {disk.calls[at - 1]}")


@pytest.mark.parametrize(("name", "error", "once"), TRIALS)
def test_an_error_at_any_call_is_told_and_made_good_by_the_next_run(
    name: str, error: str, once: bool, folder: Path, tally: Tally
) -> None:
    case = scenario(name, folder)
    others = TRIALS.index((name, error, once))
    for at in some(range(1, case.calls + 1), _CALLS, start=others):
        case.reset()
        disk = FailingDisk(at, FAULTS[error], once=once)
        told = None
        with using(disk):
            try:
                case.run(case.first)
            except StorageError as raised:
                told = raised
        label = f"{error} at call {at}, {disk.calls[at - 1]}"
        if not disk.failed:
            continue
        assert told is not None, f"{label} went unnoticed"
        assert isinstance(told, NoSpaceError) is (error == "ENOSPC"), label
        tally(**{f"{error}_at_a_call": 1})
        # Of arrays that failed at once, whichever comes first in their order is named.
        assert any(call.path in str(told) for call in disk.failed), label
        if error == "ENOSPC":
            assert not half_written(case), label
            assert "bytes" in str(told), label
        if (error, once, disk.calls[at - 1].name) == ("EIO", True, "fsync"):
            assert_never_retried(disk.calls[at - 1], disk.calls[at:])
        assert_sound(case)
        assert_ends_right(case, label)


def half_written(case: Scenario) -> set[str]:
    """Name what is still under a temporary name, beyond what was before."""
    left = {name for name in contents(case.output) if name.endswith(".tmp")}
    # A journal is not written in one go: what was committed to it stays.
    journals = {name for name in left if name.endswith(tuple(JOURNALS))}
    return left - journals - {*(case.start or ())}


def assert_never_retried(failed: Call, after: list[Call]) -> None:
    """A failed fsync may have dropped the very bytes it failed on: the file is discarded."""
    assert failed not in after
    # What is appended to is not discarded: the next run reads and judges each of its lines.
    appended = failed.path.endswith(tuple(JOURNALS))
    assert Path(failed.path).exists() is appended
    own = failed.path.removesuffix(".tmp").removesuffix(".merge")
    renamed = {call.path for call in after if call.name == "rename"}
    assert renamed.isdisjoint({own, own + ".npy"})
    # Of what was committed before, the journal is merged and the failures are written down.
    assert not {name for name in renamed if not name.endswith(".jsonl")}


def test_old_shards_stay_as_they_are_while_others_are_appended(folder: Path) -> None:
    case = scenario("append", folder)
    assert case.start is not None
    old = shard_names(case.start)
    for at in some(range(1, case.calls + 1), _CALLS):
        case.reset()
        before = {name: (case.output / name).stat().st_mtime_ns for name in old}
        with using(KillingDisk(at)), pytest.raises(Killed):
            case.run(case.first)
        with using(WatchedDisk()):
            case.run(case.again)
        assert {name: (case.output / name).stat().st_mtime_ns for name in old} == before


def test_an_overwrite_takes_nothing_from_a_build_that_was_killed_at_its_end(folder: Path) -> None:
    case = scenario("overwrite by the same build", folder)
    shutil.rmtree(case.output)
    with using(disk := WatchedDisk()):
        case.run({})
    commit = f"unlink {case.output}/.shardwright/build/commits/000001-"
    cleared = next(n for n, call in enumerate(disk.calls) if str(call).startswith(commit))
    shutil.rmtree(case.output)
    with using(KillingDisk(cleared + 1)), pytest.raises(Killed):
        case.run({})
    shard = case.output / "bucket_32x16/shard-000000.tar"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert_ends_right(case, "damaged after the kill")
