"""A fault at every single call of the disk, then the command again: the same bytes.

In process and exhaustive: each command is run as often as it has calls, for each kind of fault.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shardwright import NoSpaceError, StorageError
from shardwright.files import using
from tests.durability.folders import assert_manifest_speaks_true, shard_names
from tests.durability.scenarios import NAMES, Scenario, scenario
from tests.durability.soak import SOAK
from tests.faults import FailingDisk, Killed, KillingDisk, WatchedDisk, contents

FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
# The four commands get every fault; what varies them gets the likeliest, and all under soak.
COMMANDS = ("pack", "append", "overwrite", "resume")
TRIALS = [
    (name, error, once)
    for name in NAMES
    for error in FAULTS
    for once in (True, False)
    if SOAK or name in COMMANDS or (error, once) == ("ENOSPC", True)
]


def assert_ends_right(case: Scenario, label: str) -> None:
    """Run the command that follows a fault, and compare."""
    with using(WatchedDisk()):
        case.run(case.again)
    found = contents(case.output)
    assert found.keys() == case.expected.keys(), label
    assert found == case.expected, label


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_call_is_made_good_by_the_next_run(name: str, folder: Path) -> None:
    case = scenario(name, folder)
    for at in range(1, case.calls + 1):
        case.reset()
        with using(disk := KillingDisk(at)), pytest.raises(Killed):
            case.run(case.first)
        assert_manifest_speaks_true(case.output)
        assert_ends_right(case, f"killed at call {at}, {disk.calls[at - 1]}")


@pytest.mark.parametrize(("name", "error", "once"), TRIALS)
def test_an_error_at_any_call_is_told_and_made_good_by_the_next_run(
    name: str, error: str, once: bool, folder: Path
) -> None:
    case = scenario(name, folder)
    for at in range(1, case.calls + 1):
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
        failed = disk.failed[0].path
        assert failed in str(told), label
        if error == "ENOSPC":
            assert not half_written(case), label
            assert "bytes" in str(told), label
        assert_manifest_speaks_true(case.output)
        assert_ends_right(case, label)


def half_written(case: Scenario) -> set[str]:
    """Name what is still under a temporary name, beyond what was before."""
    left = {name for name in contents(case.output) if name.endswith(".tmp")}
    return left - set(case.start or ()) if case.output.exists() else set()


@pytest.mark.parametrize("name", ["pack", "append", "overwrite"])
def test_a_failed_fsync_is_never_retried(name: str, folder: Path) -> None:
    case = scenario(name, folder)
    for at in range(1, case.calls + 1):
        case.reset()
        disk = FailingDisk(at, errno.EIO, once=True)
        with using(disk), pytest.raises(StorageError):
            case.run(case.first)
        failed = disk.calls[at - 1]
        if failed.name == "fsync":
            after = disk.calls[at:]
            assert failed not in after
            # The file that was not synced is gone, and never got its name.
            assert not Path(failed.path).exists()
            assert not any(call.name == "rename" for call in after)


def test_old_shards_stay_as_they_are_while_others_are_appended(folder: Path) -> None:
    case = scenario("append", folder)
    assert case.start is not None
    old = shard_names(case.start)
    for at in range(1, case.calls + 1):
        case.reset()
        before = {name: (case.output / name).stat().st_mtime_ns for name in old}
        with using(KillingDisk(at)), pytest.raises(Killed):
            case.run(case.first)
        with using(WatchedDisk()):
            case.run(case.again)
        assert {name: (case.output / name).stat().st_mtime_ns for name in old} == before
