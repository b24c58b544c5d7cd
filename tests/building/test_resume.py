"""An interrupted build: the same command continues it, and another one is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import DamageError, UsageError, verify
from shardwright.building import finish, measuring, rows
from shardwright.deriving import images as decoding
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.errors import LockedError
from shardwright.progress import Progress
from shardwright.recipes import find
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.moving import move_shard
from shardwright.storage import local
from shardwright.storage.local import LocalPlace
from shardwright.store.records import Line
from shardwright.summary import Count
from tests.building.builds import (
    RECIPE,
    Interrupting,
    build,
    interrupt,
    ledger,
    listed,
    reasons,
    records,
    spoil,
    tars,
    write_recipe,
)
from tests.building.tarsets import write_set
from tests.derive.pictures import gradient, make_images, save
from tests.faults import contents
from tests.tars import ids_by_shard

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Nine images of one bucket, so that shards are made in their order."""
    return make_images(tmp_path / "images", 9, ((96, 64),))


def times(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name != "lock"}


def forbid_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[object]:
        raise AssertionError("an image is opened for its size again")

    monkeypatch.setattr(measuring, "measured", refuse)


def test_a_build_interrupted_anywhere_ends_as_one_without_a_break(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 9)
    spoil(images, 3)
    build(images, tmp_path / "once", shard_size=2)
    expected = contents(tmp_path / "once")
    shutil.rmtree(tmp_path / "once")
    for shards in range(6):
        interrupt(images, tmp_path / "once", shards, shard_size=2)
        assert not list((tmp_path / "once").glob("bucket_*")), "nothing is published yet"
        assert build(images, tmp_path / "once", shard_size=2).kept_shards == shards
        assert contents(tmp_path / "once") == expected
        shutil.rmtree(tmp_path / "once")


def test_a_build_interrupted_at_each_phase_ends_as_one_without_a_break(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 9)
    options: dict[str, Any] = {"shard_size": 2, "split": "val=40%"}
    build(images, tmp_path / "once", **options)
    for phase, after in (("measure images", 1), ("plan", 1), ("publish", 1), ("publish", 2)):
        output = tmp_path / f"{phase}{after}"
        with pytest.raises(KeyboardInterrupt):
            build(images, output, progress=Interrupting(after, phase), **options)
        build(images, output, **options)
        for part in ("train", "val"):
            assert tars(output / part) == tars(tmp_path / "once" / part) != {}
        assert verify(output / "val", workers=1).findings == []


def test_finished_shards_are_not_made_again(images: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (note,) = interrupt(images, output, 3, shard_size=2)
    stage = output / ".shardwright/build"
    done = [f"shard-{number:06}.tar" for number in range(3)]
    staged = {path.name: path.stat().st_mtime_ns for path in stage.glob("*/bucket_96x64/*.tar")}
    assert sorted(staged) == done
    assert note == "3 shards finished; run the same command to continue"
    progress = Interrupting()
    summary = build(images, output, shard_size=2, progress=progress)
    assert summary.kept_shards == 3
    assert "3 of 5 shards finished before; continuing" in progress.said
    there = {path.name: path.stat().st_mtime_ns for path in output.glob("bucket_*/*.tar")}
    assert {name: there[name] for name in staged} == staged
    assert (summary.written_samples, summary.written_shards) == (9, 5)


def test_a_rerun_measures_no_image_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(images, tmp_path / "out", shard_size=2)
    forbid_measuring(monkeypatch)
    assert build(images, tmp_path / "out", shard_size=2).written_samples == 9


def test_a_finished_build_run_again_opens_no_image_and_writes_nothing(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(images, 2)
    write_set(images / "t.tar", ["x", "y"])
    options: dict[str, Any] = {"shard_size": 2, "limit": 8}
    build(images, tmp_path / "out", **options)
    before = times(tmp_path / "out")

    def refuse(*_: object) -> None:
        raise AssertionError("an image is opened")

    forbid_measuring(monkeypatch)
    monkeypatch.setattr(decoding, "read", refuse)
    for dry_run in (False, True):
        again = build(images, tmp_path / "out", dry_run=dry_run, **options)
        assert (again.written_samples, again.already_there) == (0, 8)
        assert {n: c.count for n, c in again.left_out.items()} == {"broken_image": 1}
        assert {n: c.count for n, c in again.not_chosen.items()} == {"--limit": 2}
    assert times(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shard_size": 3}, "--shard-size was 2 and is 3"),
        ({"limit": 5}, "--limit was not given and is 5"),
        ({"shuffle": True}, "--shuffle was not given and is given"),
        ({"where": ["width > 1"]}, "--where was not given and is width > 1"),
        ({"sha256": True}, "--sha256 was not given and is given"),
        ({"append": True}, "--append was not given and is given"),
        ({"fit": "bucket"}, "fit was original, now bucket"),
    ],
    ids=str,
)
def test_another_plan_in_the_folder_is_refused_with_what_differs(
    images: Path, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    output = tmp_path / "out"
    interrupt(images, output, shard_size=2)
    before = contents(output)
    with pytest.raises(UsageError) as caught:
        build(images, output, **{"shard_size": 2, **options})
    text = str(caught.value)
    assert text.startswith(f"{output}: holds an interrupted build with other settings (")
    assert what in text
    assert text.endswith(
        "; run it as before, give --overwrite to start over, or give another --output-dir"
    )
    assert contents(output) == before


def test_other_inputs_captions_and_recipes_are_refused_with_what_differs(
    images: Path, tmp_path: Path
) -> None:
    output, captions = tmp_path / "out", tmp_path / "c.csv"
    captions.write_text("file_name,caption\nimg000.png,one\n")
    interrupt(images, output, shard_size=2, captions=captions)
    other = make_images(tmp_path / "other", 2)
    with pytest.raises(UsageError, match=f"IMAGES was {images} and is {other}"):
        build(other, output, shard_size=2, captions=captions)
    with pytest.raises(UsageError, match=r"IMAGES was .*images and is .*images, .*other"):
        build([images, other], output, shard_size=2, captions=captions)
    with pytest.raises(UsageError, match=r"--captions was \.\./c\.csv .* and is not given"):
        build(images, output, shard_size=2)
    longer = write_recipe(tmp_path, RECIPE.replace("tokens = 20", "tokens = 24"), "longer.toml")
    with pytest.raises(UsageError, match="t5: tokens was 20, now 24"):
        build(images, output, shard_size=2, captions=captions, recipe=longer)
    components = find(write_recipe(tmp_path)).recipe.components
    own = {c.name: load(c, Options(), {}) for c in components}
    with pytest.raises(UsageError, match="encoders was sketch, now given"):
        build(images, output, shard_size=2, captions=captions, encoders=own)
    captions.write_text("file_name,caption\nimg000.png,two\n")
    with pytest.raises(UsageError, match=r"--captions was .* \(xxh3 \w+\) and is .* \(xxh3 \w+\)"):
        build(images, output, shard_size=2, captions=captions)
    captions.write_text("file_name,caption\nimg000.png,one\n")
    assert build(images, output, shard_size=2, captions=captions).written_samples == 9


def test_new_and_missing_files_are_named_and_the_plan_goes_on(images: Path, tmp_path: Path) -> None:
    interrupt(images, tmp_path / "out", shard_size=2)
    save(images / "new.png", gradient(96, 64))
    (images / "new.txt").write_text("new")
    (images / "img008.png").unlink()
    progress = Interrupting()
    summary = build(images, tmp_path / "out", shard_size=2, progress=progress)
    assert summary.changed_inputs == {
        str(images): {
            "new": Count(1, f"{images}/new.png"),
            "missing": Count(1, f"{images}/img008.png"),
        }
    }
    assert (
        f"warning: {images}: changed since the plan was made (1 file new, for example "
        f"{images}/new.png; 1 file missing, for example {images}/img008.png); going on with the "
        "plan. To add what is new, run it with --append afterwards"
    ) in progress.said
    assert (summary.inputs, summary.written_samples) == (9, 8)
    assert reasons(tmp_path / "out") == {"img008.png": "gone"}
    assert ledger(tmp_path / "out")[0]["detail"] == "its file is gone"
    added = build(images, tmp_path / "out", shard_size=2, append=True)
    assert (added.written_samples, added.already_there) == (1, 8)


def test_an_image_that_changes_after_the_plan_is_left_out(images: Path, tmp_path: Path) -> None:
    tar = write_set(images / "t.tar", [f"k{n}" for n in range(4)])
    interrupt(images, tmp_path / "out", 1, shard_size=2)
    save(images / "img007.png", gradient(96, 64, seed=99))
    os.utime(images / "img008.png", (1, 1))  # a copy, which has the same bytes
    data = bytearray(tar.read_bytes())
    data[data.index(b"the text of k2")] ^= 1
    tar.write_bytes(data)
    os.utime(tar, (1, 1))
    summary = build(images, tmp_path / "out", shard_size=2)
    assert reasons(tmp_path / "out") == dict.fromkeys(("img007.png", "k2.jpg"), "changed")
    assert summary.left_out["changed"].count == summary.failed == 2
    assert "img008" in records(tmp_path / "out")
    assert "k3" in records(tmp_path / "out"), "the others of a tar that changed are still the same"


def test_a_shard_that_is_gone_from_the_stage_is_made_again(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "once", shard_size=2)
    interrupt(images, tmp_path / "out", 3, shard_size=2)
    stage = tmp_path / "out/.shardwright/build"
    first, second, *_ = sorted(stage.glob("*/bucket_*/*.tar"))
    first.write_bytes(first.read_bytes()[:-512])
    second.unlink()
    build(images, tmp_path / "out", shard_size=2)
    assert tars(tmp_path / "out") == tars(tmp_path / "once")
    assert verify(tmp_path / "out", read_data=True, workers=1).findings == []


def test_what_attempts_have_left_that_do_not_count_is_removed_before_the_next_begins(
    images: Path, tmp_path: Path
) -> None:
    interrupt(images, tmp_path / "out", 3, shard_size=2)
    stage = tmp_path / "out/.shardwright/build"
    first, *others = sorted(stage.glob("*/bucket_*/*.tar"))
    first.unlink()  # so that its attempt does not count
    killed = stage / "0123456789abcdef/bucket_96x64/shard-000004.tar.tmp"
    killed.parent.mkdir(parents=True)
    killed.write_bytes(b"half written")
    interrupt(images, tmp_path / "out", 0, shard_size=2)
    assert sorted(stage.glob("*/bucket_*/*")) == others
    assert len(list(stage.glob("commits/*"))) == len(others) == 2


def test_a_shard_that_is_gone_with_its_files_is_made_again(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "once", shard_size=2)
    interrupt(images, tmp_path / "out", 3, shard_size=2)
    stage = tmp_path / "out/.shardwright/build"
    for path in stage.rglob("shard-000001.*"):
        path.unlink()
    assert build(images, tmp_path / "out", shard_size=2).kept_shards == 2
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_shards_that_have_moved_to_their_place_are_not_made_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(images, tmp_path / "once", shard_size=2)
    moved: list[str] = []

    def move(stage: Path, output: Path, entry: ShardEntry, path: str) -> ShardEntry:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(path)
        return move_shard(stage, output, entry, path)

    with monkeypatch.context() as patched:
        patched.setattr(finish, "move_shard", move)
        with pytest.raises(KeyboardInterrupt):
            build(images, tmp_path / "out", shard_size=2)
    assert sorted(tars(tmp_path / "out")) == moved
    assert build(images, tmp_path / "out", shard_size=2).kept_shards == 5
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_a_part_that_another_run_writes_to_is_not_touched(images: Path, tmp_path: Path) -> None:
    interrupt(images, tmp_path / "out", 4, shard_size=1, split="val=40%")
    before = contents(tmp_path / "out")
    with (
        LocalPlace(tmp_path / "out/val").lease(),
        pytest.raises(LockedError, match=r"out/val: process .* is writing here"),
    ):
        build(images, tmp_path / "out", shard_size=2, split="val=40%", overwrite=True)
    assert contents(tmp_path / "out") == before


def test_changes_in_several_inputs_are_found_in_one_reading_of_the_plan(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [images, write_set(tmp_path / "a.tar", ["a"]), write_set(tmp_path / "b.tar", ["b"])]
    interrupt(given, tmp_path / "out", shard_size=2)
    (images / "img003.png").unlink()
    os.utime(given[2], (1, 1))
    read, times = rows.heads, list[Path]()

    def reading(folder: Path, progress: Progress) -> Iterator[tuple[Line, rows.Head]]:
        times.append(folder)
        return read(folder, progress)

    monkeypatch.setattr(rows, "heads", reading)
    summary = build(given, tmp_path / "out", shard_size=2)
    assert summary.changed_inputs == {
        str(images): {"missing": Count(1, f"{images}/img003.png")},
        str(given[2]): {"changed": Count(1, str(given[2]))},
    }
    assert len(times) == 2, "once to compare, and once for the layout"


def test_a_rerun_asks_only_for_the_room_of_what_is_missing(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = build(images, tmp_path / "once", shard_size=2).written_bytes
    interrupt(images, tmp_path / "out", 4, shard_size=2)
    monkeypatch.setattr(local.LocalPlace, "free_bytes", lambda _: total // 2)
    assert build(images, tmp_path / "out", shard_size=2).written_samples == 9


def test_a_dry_run_of_an_interrupted_build_tells_what_is_finished(
    images: Path, tmp_path: Path
) -> None:
    interrupt(images, tmp_path / "out", 3, shard_size=2)
    before = contents(tmp_path / "out")
    told = build(images, tmp_path / "out", shard_size=2, dry_run=True)
    assert (told.kept_shards, told.written_shards, told.written_samples) == (3, 5, 9)
    assert contents(tmp_path / "out") == before


def test_overwrite_starts_an_interrupted_build_over(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "once", shard_size=4)
    interrupt(images, tmp_path / "out", 3, shard_size=2)
    summary = build(images, tmp_path / "out", shard_size=4, overwrite=True)
    assert (summary.written_samples, summary.kept_shards) == (9, 0)
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_a_plan_that_was_damaged_is_refused_and_can_be_started_over(
    images: Path, tmp_path: Path
) -> None:
    interrupt(images, tmp_path / "out", shard_size=2)
    inputs = tmp_path / "out/.shardwright/build/inputs.jsonl"
    inputs.write_bytes(inputs.read_bytes().replace(b"number 3", b"number 4"))
    with pytest.raises(DamageError) as caught:
        build(images, tmp_path / "out", shard_size=2)
    assert str(caught.value) == f"{inputs}: is damaged; build again with --overwrite"
    build(images, tmp_path / "out", shard_size=2, overwrite=True)
    assert records(tmp_path / "out")["img003"]["caption"] == "a soft gradient, number 3"


@pytest.mark.parametrize("name", ["inputs.jsonl", "plan.json", "../unfinished.json"])
@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_interrupted_build_can_be_started_over_whatever_has_happened_to_its_state(
    images: Path, tmp_path: Path, name: str, how: str
) -> None:
    build(images, tmp_path / "once", shard_size=2)
    interrupt(images, tmp_path / "out", shard_size=2)
    path = tmp_path / "out/.shardwright/build" / name
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    build(images, tmp_path / "out", shard_size=2, overwrite=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_a_plan_without_its_inputs_is_refused_with_the_fix(images: Path, tmp_path: Path) -> None:
    interrupt(images, tmp_path / "out", shard_size=2)
    stage = tmp_path / "out/.shardwright/build"
    (stage / "inputs.jsonl").unlink()
    with pytest.raises(DamageError) as caught:
        build(images, tmp_path / "out", shard_size=2)
    assert str(caught.value) == f"{stage}/inputs.jsonl: is missing; build again with --overwrite"
    (stage / "plan.json").write_bytes(b"{")
    with pytest.raises(DamageError) as caught:
        build(images, tmp_path / "out", shard_size=2)
    assert str(caught.value) == f"{stage}/plan.json: is damaged; delete {stage} and build again"
    shutil.rmtree(stage)
    assert build(images, tmp_path / "out", shard_size=2).written_samples == 9


def test_a_finished_build_whose_shard_is_gone_says_so(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "out", shard_size=2)
    shard = tmp_path / "out/bucket_96x64/shard-000001.tar"
    good = shard.read_bytes()
    for data in (None, good[:-512]):
        shard.unlink(missing_ok=True)
        if data is not None:
            shard.write_bytes(data)
        for dry_run in (False, True):
            with pytest.raises(DamageError) as caught:
                build(images, tmp_path / "out", shard_size=2, dry_run=dry_run)
            assert str(caught.value) == (
                f"{shard}: is missing or incomplete; restore a copy, or build again with "
                "--overwrite"
            )
    shard.write_bytes(good)
    assert build(images, tmp_path / "out", shard_size=2).already_there == 9


@pytest.mark.parametrize("limit", [None, 6, 8])
def test_a_finished_build_whose_part_is_gone_says_so(
    images: Path, tmp_path: Path, limit: int | None
) -> None:
    spoil(images, 2)
    options: dict[str, Any] = {"split": "val=40%", "limit": limit}
    made = build(images, tmp_path / "out", **options)
    assert made.parts.keys() == {"train", "val"}
    assert build(images, tmp_path / "out", **options).already_there == made.written_samples
    (tmp_path / "out/val").rename(tmp_path / "val")
    with pytest.raises(DamageError) as caught:
        build(images, tmp_path / "out", **options)
    assert str(caught.value) == (
        f"{tmp_path}/out/val: is missing or incomplete; restore a copy, or build again with "
        "--overwrite"
    )
    shutil.rmtree(tmp_path / "out/val")  # which has a lock
    (tmp_path / "val").rename(tmp_path / "out/val")
    assert build(images, tmp_path / "out", **options).already_there == made.written_samples


def test_a_finished_build_without_its_ledger_is_finished(images: Path, tmp_path: Path) -> None:
    spoil(images, 2)
    build(images, tmp_path / "out")
    path = tmp_path / "out/.shardwright/ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamageError) as caught:
        build(images, tmp_path / "out")
    assert str(caught.value) == (f"{path}: is damaged; delete it, or build again with --overwrite")
    path.unlink()
    again = shardwright.build(images, output_dir=tmp_path / "out")
    assert (again.inputs, again.written_samples, again.already_there) == (9, 0, 8)
    assert (again.left_out, again.not_chosen) == ({}, {})


def test_an_interrupted_build_is_no_finished_one_for_others(images: Path, tmp_path: Path) -> None:
    interrupt(images, tmp_path / "out", shard_size=2)
    report = verify(tmp_path / "out", workers=1)
    assert [finding.kind for finding in report.findings] == ["unfinished"]
    build(images, tmp_path / "out", shard_size=2)
    assert listed(tmp_path / "out").runs[0].samples == 9
    assert len(ids_by_shard(tmp_path / "out")) == 5
