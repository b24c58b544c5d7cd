"""A power cut after every operation, with everything unsynced kept, lost or garbled.

The same command again must end in the same bytes, no shard that was reported may be gone, and once
a command has returned, nothing may change at all. Without any one of the syncs, this fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.errors import ShardwrightError
from shardwright.files import using
from tests.durability.disks import WatchedDisk
from tests.durability.folders import Contents, assert_manifest_speaks_true
from tests.durability.powercut import Cut, Listener, Operation, PowerCut, RecordingDisk, replay
from tests.durability.scenarios import NAMES, Options, Scenario, scenario
from tests.faults import Killed, contents


def record(case: Scenario, killed_at: int | None = None) -> list[Operation]:
    """Write down what an unbroken run does; or a run that is killed, and the run after it."""
    case.reset()
    if killed_at is None:
        return _record(case, case.first, RecordingDisk())
    disk = RecordingDisk(killed_at)
    with pytest.raises(Killed):
        _record(case, case.first, disk)
    return [*disk.log, *_record(case, case.again, RecordingDisk())]


def _record(case: Scenario, options: Options, disk: RecordingDisk) -> list[Operation]:
    with using(disk):
        case.run(options, Listener(disk, case.output))
    return disk.log


def changed_after_the_end(case: Scenario, log: Sequence[Operation]) -> bool:
    """Whether a power cut can change what was made after the command has returned."""
    disk = PowerCut(case.output, case.start)
    for operation in log:
        disk.do(operation)
    return any(without_tmp(left) != case.expected for left in disk.outcomes())


def loses_a_reported_shard(case: Scenario, log: Sequence[Operation]) -> bool:
    """Whether a power cut can take a shard that was reported to be written."""
    return any(cut.lost for cut in replay(case.output, case.start, log))


def without_tmp(held: Contents | None) -> Contents | None:
    """Leave out what has a temporary name: nobody reads it, and the next run removes it."""
    if held is None:
        return None
    return {name: data for name, data in held.items() if not name.endswith(".tmp")}


def first_failure(case: Scenario, log: Sequence[Operation]) -> str | None:
    """Find a power cut after which the promise does not hold."""
    if changed_after_the_end(case, log):
        return "the command had returned, and yet a power cut changed what it made"
    for cut in replay(case.output, case.start, log):
        failure = failure_after(case, cut)
        if failure is not None:
            last = log[cut.length - 1] if cut.length else "nothing"
            return f"{failure} after {cut.length} operations, the last being {last}"
    return None


def failure_after(case: Scenario, cut: Cut) -> str | None:
    if cut.lost:
        return f"{cut.lost} were reported, and are gone"
    replace(case, start=cut.left).reset()
    try:
        assert_manifest_speaks_true(case.output)
        with using(WatchedDisk()):
            case.run(case.again)
    except (AssertionError, KeyError, ShardwrightError) as error:
        return f"{type(error).__name__}: {error}"
    return None if contents(case.output) == case.expected else "other bytes"


@pytest.mark.parametrize("name", NAMES)
def test_a_power_cut_at_any_moment_is_made_good_by_the_next_run(name: str, folder: Path) -> None:
    case = scenario(name, folder)
    assert first_failure(case, record(case)) is None


@pytest.mark.parametrize("name", ["pack", "append", "overwrite"])
def test_a_power_cut_after_a_kill_and_a_rerun_changes_nothing(name: str, folder: Path) -> None:
    case = scenario(name, folder)
    for at in range(1, case.calls + 1):
        assert not changed_after_the_end(case, record(case, killed_at=at)), f"killed at call {at}"


def test_every_sync_matters(folder: Path) -> None:
    """Without any one of them there is a power cut that is not made good."""
    trials = []
    for name, kill in (("pack", 2), ("overwrite", 25), ("overwrite one bucket", 25)):
        case = scenario(name, folder / name)
        trials += [(case, record(case)), (case, record(case, killed_at=kill))]
    sites = {operation.site for _, log in trials for operation in log if operation.is_sync}
    assert len(sites) >= 8
    for site in sorted(sites):
        mutants = [(case, [op for op in log if op.site != site]) for case, log in trials]
        # What needs no run comes first, since it is quick.
        assert any(
            failure(case, log)
            for failure in (changed_after_the_end, loses_a_reported_shard, first_failure)
            for case, log in mutants
        ), f"nothing is lost without the sync in {site}"
