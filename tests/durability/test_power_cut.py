"""A power cut after an operation, with everything unsynced kept, lost or garbled.

The same command again must end in the same bytes, no shard or record that was reported may be gone,
and once a command has returned, nothing may change at all. Without any one of the syncs this fails.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.errors import ShardwrightError
from shardwright.storage.files import using
from tests.durability.folders import (
    JOURNAL,
    Contents,
    assert_arrays_are_whole,
    assert_manifest_speaks_true,
    assert_shards_are_whole,
)
from tests.durability.powercut import Cut, Listener, Operation, PowerCut, RecordingDisk, replay
from tests.durability.scenarios import BUILDING, NAMES, Options, Scenario, scenario
from tests.durability.soak import SOAK, Tally, some
from tests.faults import Killed, WatchedDisk, contents

_CUTS = 5  # of those that a run can suffer; under soak all
# For the syncs that matter after a kill: at which call that is.
KILLS = {
    "pack": 2,
    "overwrite": 25,
    "overwrite one bucket": 25,
    "migrate": 47,
    "derive": 2,
    "derive more": 40,
    "recompute": 40,
    "discard a recompute": 12,
    "change the recipe": 40,
    "exchange ids": 20,
}


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


def loses_what_was_reported(case: Scenario, log: Sequence[Operation]) -> bool:
    """Whether a power cut can take a shard or a record that was reported to be written."""
    return any(cut.lost for cut in replay(case.output, case.start, log))


def without_tmp(held: Contents | None) -> Contents | None:
    """Leave out what has a temporary name: nobody reads it, and the next run removes it.

    The journal is read, so it must not come back.
    """
    if held is None:
        return None
    return {
        name: data for name, data in held.items() if name == JOURNAL or not name.endswith(".tmp")
    }


def first_failure(cuts: Iterable[Cut], case: Scenario, log: Sequence[Operation]) -> str | None:
    """Find a power cut after which the promise does not hold."""
    for cut in cuts:
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
        assert_arrays_are_whole(case.output, case.start, case.expected)
        assert_shards_are_whole(case.output, case.start, case.expected)
        with using(WatchedDisk()):
            case.run(case.again)
    except (AssertionError, KeyError, ShardwrightError) as error:
        return f"{type(error).__name__}: {error}"
    return None if contents(case.output) == case.expected else "other bytes"


@pytest.mark.parametrize("name", NAMES)
def test_a_power_cut_at_any_moment_is_made_good_by_the_next_run(
    name: str, folder: Path, tally: Tally
) -> None:
    case = scenario(name, folder)
    log = record(case)
    assert not changed_after_the_end(case, log)
    cuts = some(list(replay(case.output, case.start, log)), _CUTS)
    assert first_failure(cuts, case, log) is None
    tally(power_cuts=len(cuts))


@pytest.mark.parametrize(
    "name",
    [
        *("pack", "append", "overwrite", "migrate", "derive", "derive more", "recompute"),
        *("build", "overwrite by a build"),
    ],
)
def test_a_power_cut_after_a_kill_and_a_rerun_changes_nothing(
    name: str, folder: Path, tally: Tally
) -> None:
    case = scenario(name, folder)
    for at in some(range(1, case.calls + 1), _CUTS):
        tally(kills_and_power_cuts=1)
        assert not changed_after_the_end(case, record(case, killed_at=at)), f"killed at call {at}"


@pytest.mark.usefixtures("one_order")  # for the calls at which KILLS kills
def test_every_sync_matters(folder: Path, tally: Tally) -> None:
    """Without any one of them there is a power cut that some command does not make good."""
    recorded = []
    for name, kill in KILLS.items():
        case = scenario(name, folder / name)
        recorded += [(case, record(case)), (case, record(case, killed_at=kill))]
    sites = {operation.site for _, log in recorded for operation in log if operation.is_sync}
    assert len(sites) >= 20
    for site in sorted(sites):
        trials = [(case, log, without(site, log)) for case, log in recorded]
        mutants = [(case, log, mutant) for case, log, mutant in trials if len(mutant) < len(log)]
        # What is quick comes first; of that which needs a run, only what is new.
        assert (
            any(changed_after_the_end(case, mutant) for case, _, mutant in mutants)
            or any(loses_what_was_reported(case, mutant) for case, _, mutant in mutants)
            or any(
                first_failure(new_cuts(case, log, mutant), case, mutant)
                for case, log, mutant in mutants
            )
        ), f"nothing is lost without the sync in {site}"
    tally(syncs_removed=len(sites))


@pytest.mark.parametrize(
    ("name", "asked_by", "count"),
    [
        ("append to a build", "work.finish", 3),  # its tar, records and index
        ("append to a build", "commits.settle, line \\d+, for sync_folder", 1),  # their names
        ("overwrite by a build", "finish._moved, line \\d+, for make_durable", 1),
        ("append to a build", "finish.clear", 1),
        ("overwrite by a build", "finish._publish, line \\d+, for finish", 2),
        ("append to a build", "finish._publish, line \\d+, for finish", 2),  # the manifest too
    ],
)
def test_the_syncs_of_a_build_matter(
    name: str, asked_by: str, count: int, folder: Path, tally: Tally
) -> None:
    """Each of them, though pack and others ask for syncs in the same lines."""
    case = scenario(name, folder)
    log = record(case)
    lines = {operation.build for operation in log if re.match(asked_by, operation.build)}
    assert len(lines) == count
    for line in lines:
        mutant = [operation for operation in log if operation.build != line]
        # From the end: there a cut does more harm, and few others need to be tried.
        assert changed_after_the_end(case, mutant) or first_failure(
            reversed([*new_cuts(case, log, mutant)]), case, mutant
        ), f"nothing is lost without the syncs of {line}"
    tally(syncs_removed=count)


@pytest.mark.parametrize("name", BUILDING if SOAK else ["append to a build"])
def test_a_power_cut_while_a_build_goes_on_after_a_kill_is_made_good(
    name: str, folder: Path, tally: Tally
) -> None:
    """Also if the kill came before the sync of a folder's name, which the rerun finds there."""
    case = scenario(name, folder)
    case.reset()
    with using(disk := WatchedDisk()):
        case.run(case.first)
    kills = [at for at, call in enumerate(disk.names, 2) if call == "mkdir"]
    for at in kills if SOAK else kills[1::2]:
        log = record(case, killed_at=at)
        cuts = some(list(replay(case.output, case.start, log)), _CUTS)
        assert first_failure(cuts, case, log) is None, f"killed at call {at}"
        tally(kills_and_power_cuts=len(cuts))


def without(site: str, log: Sequence[Operation]) -> list[Operation]:
    return [operation for operation in log if operation.site != site]


def new_cuts(
    case: Scenario, log: Sequence[Operation], mutant: Sequence[Operation]
) -> Iterator[Cut]:
    """Give the power cuts that leave what none of the first log can leave."""
    seen: set[int] = set()
    deque(replay(case.output, case.start, log, seen), maxlen=0)
    return replay(case.output, case.start, mutant, seen)
