"""A real file system that is too small: the error says so, and with room the work goes on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from shardwright import NoSpaceError, Progress, pack, verify
from shardwright.storage import files
from shardwright.storage.files import using
from tests.commands import run
from tests.derive.fakes import Fake, given
from tests.derive.pictures import make_images, sketch
from tests.durability.folders import (
    JOURNALS,
    assert_arrays_are_whole,
    assert_shards_are_whole,
    shard_names,
)
from tests.durability.scenarios import scenario, small_store, twenty
from tests.durability.soak import Tally, some
from tests.faults import Call, WatchedDisk, contents
from tests.stores import Store

FULL = re.compile(r"the disk is full|the disk has \S+ \w+ free; make room")  # at work, or before
_CALLS = 8  # of each run at which it fills up; under soak all


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 2 MB, where shards of 3.4 MB do not fit."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here, so no small file system to fill")
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return small_store(tmp_path / "derived", twenty())


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_shards_that_cannot_fit_are_refused_before_anything_is_written(
    small_disk: Path, store: Store
) -> None:
    with pytest.raises(NoSpaceError, match=r"the shards need 3\.\d+ MB and the disk has"):
        pack(derived_dir=store.root, output_dir=small_disk / "shards", workers=1)
    assert list(small_disk.iterdir()) == []


def test_shards_that_cannot_fit_are_packed_all_the_same_if_the_user_says_so(
    small_disk: Path, store: Store
) -> None:
    words = (
        "--derived-dir",
        store.root,
        "--output-dir",
        small_disk / "shards",
        "--shard-size",
        "3",
    )
    assert "or continue with --ignore-space" in run("pack", *words).stderr
    done = run("pack", *words, "--ignore-space", "--dry-run")
    assert done.returncode == 0
    assert "NOT ENOUGH" in done.stdout
    done = run("pack", *words, "--ignore-space")
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert shard_names(contents(small_disk / "shards"))


class NeverLoaded(Fake):
    """An encoder whose model must not be loaded."""

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError("it was loaded")


def test_arrays_that_cannot_fit_are_refused_before_a_model_is_loaded(
    small_disk: Path, tmp_path: Path
) -> None:
    images, derived = make_images(tmp_path / "images", 16), small_disk / "derived"
    encoders = given(dinov3=NeverLoaded())
    with pytest.raises(
        NoSpaceError,
        match=r"derived: the arrays need about 2\.\d+ MB and the disk has 2\.\d+ MB free; make "
        r"room, or continue with --ignore-space$",
    ):
        sketch(images, derived, encoders=encoders)
    assert list(small_disk.iterdir()) == []
    foreseen = sketch(images, derived, encoders=encoders, dry_run=True)
    assert foreseen.bytes_needed > foreseen.free_bytes
    assert foreseen.obstacle is not None
    words = ("derive", images, "--derived-dir", derived, "--encoders", "sketch")
    done = run(*words, "--dry-run")
    assert done.returncode == 1
    assert "free: NOT ENOUGH\n\nthe run itself would stop: " in done.stdout
    done = run(*words, "--dry-run", "--ignore-space")
    assert done.returncode == 0
    assert done.stdout.endswith("free: NOT ENOUGH\n")
    done = run(*words, "--ignore-space")
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert list((derived / "t5_hidden").iterdir())


def test_a_recompute_needs_room_for_old_and_new_arrays_or_does_without_the_old(
    small_disk: Path, tmp_path: Path
) -> None:
    images, derived = make_images(tmp_path / "images", 8), small_disk / "derived"
    sketch(images, derived)
    before = contents(derived)
    again = {"recompute": ["t5"], "components": ["t5"], "encoders": given()}
    with pytest.raises(
        NoSpaceError,
        match=r"the arrays need about 1\.\d+ MB and the disk has \d+ kB free; make room, delete "
        r"\S+/derived/t5_hidden to do without the old arrays, or continue with --ignore-space$",
    ):
        sketch(images, derived, **again)
    assert contents(derived) == before
    foreseen = sketch(images, derived, **again, dry_run=True)
    assert foreseen.bytes_needed == foreseen.components["t5"].bytes_needed > foreseen.free_bytes
    shutil.rmtree(derived / "t5_hidden")
    assert sketch(images, derived, **again).components["t5"].made == 8
    assert contents(derived).keys() == before.keys()


def test_a_disk_without_inodes_is_told_from_one_without_bytes(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=3", str(small_disk)], check=True)
    files.write(small_disk / "a", b"")
    files.write(small_disk / "b", b"")
    with pytest.raises(NoSpaceError, match=r"c\.tmp: the disk is full \(no inodes free"):
        files.write(small_disk / "c", b"")


class Filler(Progress):
    """Another program, which takes almost all of the room when the writing begins."""

    def __init__(self, disk: Path, leave: int) -> None:
        self.disk, self.leave = disk, leave

    def phase(self, name: str, total: int, unit: str) -> None:
        if name == "write":
            free = shutil.disk_usage(self.disk).free
            (self.disk / "filler").write_bytes(bytes(max(free - self.leave, 0)))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("leave", [0, 4096, 300_000, 1_500_000, 3_350_000])
def test_a_disk_that_fills_up_meanwhile_is_told_and_with_room_the_work_goes_on(
    leave: int, workers: int, small_disk: Path, store: Store, tmp_path: Path
) -> None:
    resize(small_disk, "8m")
    output = small_disk / "shards"
    with pytest.raises(NoSpaceError) as told:
        pack(
            derived_dir=store.root,
            output_dir=output,
            shard_size=3,
            workers=workers,
            progress=Filler(small_disk, leave),
        )
    assert str(output) in str(told.value)
    assert "the disk is full" in str(told.value)
    held = contents(output)
    assert not [name for name in held if name.endswith((".tar.tmp", ".idx.tmp", ".jsonl.tmp"))]
    for suffix in (".idx", ".jsonl"):
        assert len(shard_names(held)) == len([name for name in held if name.endswith(suffix)])
    if shard_names(held):
        assert verify(output, read_data=True, workers=1).counts == {"unfinished": 1}
    (small_disk / "filler").unlink()
    summary = pack(
        derived_dir=store.root, output_dir=output, shard_size=3, workers=workers, resume=True
    )
    assert summary.kept_shards == len(shard_names(held))
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", shard_size=3, workers=1)
    assert contents(output) == contents(tmp_path / "unbroken")


def test_a_disk_without_room_for_a_single_byte_is_told(small_disk: Path, store: Store) -> None:
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises(NoSpaceError):
        pack(derived_dir=store.root, output_dir=small_disk / "shards", limit=1, workers=1)
    done = run("pack", "--derived-dir", store.root, "--output-dir", small_disk / "shards")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")


class Crowd(WatchedDisk):
    """A real disk of which another program takes all the room at the nth call."""

    def __init__(self, disk: Path, at: int) -> None:
        super().__init__()
        self.disk, self.at = disk, at

    def before(self, call: Call) -> None:
        if len(self.calls) == self.at:
            free = shutil.disk_usage(self.disk).free
            (self.disk / "filler").write_bytes(bytes(free))


@pytest.mark.parametrize("name", ["migrate", "derive", "derive more", "recompute", "build"])
def test_work_on_a_disk_that_fills_up_loses_nothing(
    name: str, small_disk: Path, tally: Tally
) -> None:
    resize(small_disk, "8m")
    case = scenario(name, small_disk)
    faults, calls = 0, some(range(1, case.calls + 1), _CALLS)
    for at in calls:
        case.reset()
        told = None
        try:
            with using(Crowd(small_disk, at)):
                case.run(case.first)
        except NoSpaceError as error:
            told = str(error)
            faults += 1
        # What is already open may have room left in its last block.
        assert told is None or (str(case.output) in told and FULL.search(told))
        assert_arrays_are_whole(case.output, case.start, case.expected)
        assert_shards_are_whole(case.output, case.start, case.expected)
        left = {name for name in contents(case.output) if name.endswith(".tmp")}
        journals = {name for name in left if name.endswith(tuple(JOURNALS))}
        assert left <= {*(case.start or ()), *journals}
        (small_disk / "filler").unlink()
        case.run(case.again)
        assert contents(case.output) == case.expected
    assert faults > len(calls) // 2
    tally(full_disks=faults)
