"""Steps: killed at every call, without power at every moment; also while they are done again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from shardwright.errors import DamageError, StorageError
from shardwright.storage import files, steps
from shardwright.storage.files import using
from shardwright.storage.steps import Steps
from tests.durability.folders import Contents, restore
from tests.durability.powercut import RecordingDisk, replay
from tests.durability.scenarios import scenario
from tests.durability.soak import Tally, some
from tests.faults import Killed, KillingDisk, contents

Run = Callable[[Path], object]
Fault = Callable[[Path, Contents, Run], Iterator[Contents]]

START: Contents = {
    ".shardwright": None,
    ".shardwright/next": None,
    ".shardwright/next/arrays": None,
    ".shardwright/next/arrays/new": b"new",
    ".shardwright/next/arrays/old": b"newer",
    "arrays": None,
    "arrays/gone": b"gone",
    "arrays/left": b"left",
    "arrays/old": b"old",
    "arrays/right": b"right",
    "records": b"old records",
}
END: Contents = {
    ".shardwright": None,
    "arrays": None,
    "arrays/left": b"right",
    "arrays/new": b"new",
    "arrays/old": b"newer",
    "arrays/right": b"left",
    "records": b"new records",
}
BESIDE = ("facts.jsonl", "provenance.json", "recipe.json")  # in .shardwright


def change(folder: Path) -> None:
    """Exchange two names, replace a file, take over those of another folder, and remove one."""
    arrays, new = folder / "arrays", folder / ".shardwright/next"
    with Steps(folder, "change") as listed:
        for old, name in (("left", "right"), ("right", "left")):
            tmp = arrays / f"{name}.tmp"
            files.remove(tmp)
            files.keep(arrays / old, tmp)
            listed.rename(tmp, arrays / name)
        listed.write(folder / "records", b"new records")
        listed.rename_all(new / "arrays", arrays)
        listed.remove_all(new)
        listed.remove(arrays / "gone")


def reset(folder: Path, held: Contents) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    restore(folder, held)


def killed(folder: Path, held: Contents, run: Run) -> Iterator[Contents]:
    """Give what is left after a kill at each call in turn."""
    for at in count(1):
        reset(folder, held)
        with using(KillingDisk(at)):
            try:
                run(folder)
                return
            except Killed:
                pass
        yield contents(folder)


def cut(folder: Path, held: Contents, run: Run) -> Iterator[Contents]:
    """Give what may be left after a power cut at each moment."""
    reset(folder, held)
    with using(disk := RecordingDisk()):
        run(folder)
    for each in replay(folder, held, disk.log):
        if each.left is not None:
            yield each.left


def without_tmp(held: Contents) -> Contents:
    return {name: data for name, data in held.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize("fault", [killed, cut])
def test_steps_are_done_completely_or_not_at_all_also_when_they_are_done_again(
    fault: Fault, folder: Path, tally: Tally
) -> None:
    place, listed = folder / "place", 0
    reset(place, START)
    change(place)
    assert contents(place) == END
    for left in fault(place, START, change):
        is_listed = f".shardwright/{steps.NAME}" in left
        if not is_listed:
            assert without_tmp(left) in (START, END)
            continue
        listed += 1
        reset(place, left)
        assert steps.finish(place) == "change"
        assert contents(place) == END
        for again in fault(place, left, steps.finish):
            reset(place, again)
            steps.finish(place)
            assert without_tmp(contents(place)) == END
            tally(faults_while_steps_are_done_again=1)
    assert listed > 10


def in_use(held: Contents) -> Contents:
    """Give what readers of a store go by: its arrays, records, facts, provenance and recipe."""
    used = {f".shardwright/{name}" for name in BESIDE}
    used |= {name for name, data in held.items() if data and not name.startswith(".shardwright")}
    return without_tmp({name: data for name, data in held.items() if name in used})


@pytest.mark.usefixtures("one_order")
@pytest.mark.parametrize("name", ["exchange ids", "change the recipe", "recompute", "update"])
def test_records_facts_provenance_and_arrays_of_a_run_change_together_or_not_at_all(
    name: str, folder: Path
) -> None:
    case, between, refused = scenario(name, folder), list[Contents](), 0
    assert case.start is not None
    ends = [in_use(case.start), in_use(case.expected)]
    assert ends[0] != ends[1]
    for at in some(range(1, case.calls + 1), 20):
        case.reset()
        with using(KillingDisk(at)), pytest.raises(Killed):
            case.run(case.first)
        if steps.under_way(case.output):
            refused += 1
        elif (left := in_use(contents(case.output))) not in (*ends, *between):
            between.append(left)
    assert refused > 2
    assert len(between) == (name == "update")  # which prunes first


def test_what_was_to_replace_a_file_is_discarded_when_the_steps_cannot_be_listed(
    folder: Path,
) -> None:
    def fail(place: Path) -> None:
        with Steps(place, "change") as listed:
            listed.write(place / "records", b"new records")
            raise StorageError("no space", path=place)

    restore(folder / "place", START)
    with pytest.raises(StorageError):
        fail(folder / "place")
    assert contents(folder / "place") == START


@pytest.mark.parametrize("line", ["", "{}", '{"what": 1}', '{"what": "change"}\n["a"]', "[" * 9999])
def test_a_list_that_cannot_be_read_is_damage(line: str, tmp_path: Path) -> None:
    restore(tmp_path / "place", START)
    (tmp_path / "place/.shardwright" / steps.NAME).write_text(line)
    before = contents(tmp_path / "place")
    with pytest.raises(DamageError, match="is not a list of steps"):
        steps.finish(tmp_path / "place")
    assert contents(tmp_path / "place") == before


@pytest.mark.parametrize(
    "step", ['[null, "link/"]', '["arrays/", "link/"]', '["link/", "arrays/"]']
)
def test_a_folder_outside_to_which_a_link_leads_is_changed_only_if_it_is_trusted(
    step: str, tmp_path: Path
) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    restore(place, START)
    restore(other, {"file": b"other"})
    (place / "link").symlink_to(other)
    (place / ".shardwright" / steps.NAME).write_text(f'{{"what": "change"}}\n{step}\n')
    with pytest.raises(DamageError, match="names 'link/', which is not a name in this folder"):
        steps.finish(place)
    assert contents(other) == {"file": b"other"}
    if "null" not in step:  # no folder of arrays is ever removed
        assert steps.finish(place, trusted=[place / "link"]) == "change"
