"""What is already there is decided by what an image is, and not by how its path ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shardwright import UsageError, derive, pack
from tests.building.builds import build, ledger, records, spoil, tars, write_recipe
from tests.building.tarsets import Member, members_of, write_tar
from tests.commands import run
from tests.derive.pictures import gradient, make_images, save

pytestmark = pytest.mark.timeout(600)


def laion(folder: Path, seed: int) -> Path:
    """Make a data set as img2dataset does: names are numbers, which begin at 0."""
    members: list[Member] = []
    for number in range(6):
        members += members_of(f"{number:09}", 10 * seed + number, (24, 16 + seed))
    write_tar(folder / "00000.tar", members)
    return folder


@pytest.mark.parametrize("ids", ["name", "path"])
def test_a_second_data_set_of_the_same_names_is_reported_and_not_taken_for_the_first(
    tmp_path: Path, ids: str
) -> None:
    first, second = laion(tmp_path / "laionA", 1), laion(tmp_path / "laionB", 2)
    made = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch", "--ids", ids)
    flags = (*made, "--output-dir", tmp_path / "out")
    assert run("build", first, *flags).returncode == 0
    before = tars(tmp_path / "out")
    done = run("build", second, *flags, "--append")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "\nwritten_samples: 0\nalready_there: 0\nleft_out: 6\n  duplicate_id: 6 " in done.stdout
    assert tars(tmp_path / "out") == before
    (left, *_) = ledger(tmp_path / "out")
    assert left["image_path"] == f"{second}/00000.tar/000000000.jpg"
    assert left["detail"] == (
        f"the shards have this image_id for {first}/00000.tar/000000000.jpg, which is another image"
    )
    again = run("build", first, *flags, "--append")
    assert again.returncode == 0
    assert "\nalready_there: 6\nleft_out: 0" in again.stdout


def test_a_data_set_that_moved_is_there_and_one_in_its_place_is_not(tmp_path: Path) -> None:
    first, output = laion(tmp_path / "laion", 1), tmp_path / "out"
    build(first, output)
    moved = shutil.copytree(first, tmp_path / "moved")  # with other times
    os.utime(moved / "00000.tar", (1, 1))
    shutil.rmtree(first)
    summary = build(moved, output, append=True)
    assert (summary.already_there, summary.left_out) == (6, {})
    laion(first, 3)
    summary = build(first, output, append=True)
    assert (summary.already_there, summary.left_out["duplicate_id"].count) == (0, 6)
    assert ledger(output)[0]["detail"] == (
        "the shards have an earlier image of this path; to replace it, build again with --overwrite"
    )


def test_other_files_of_the_same_names_are_others_also_when_the_first_folder_is_gone(
    tmp_path: Path,
) -> None:
    output, first = tmp_path / "out", make_images(tmp_path / "a", 3)
    build(first, output)
    moved = first.rename(tmp_path / "b")
    for number in range(1, 3):  # as large as before, and alike for a long way
        path = moved / f"img{number:03}.png"
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"\0")
    save(moved / "new.png", gradient(96, 64))
    (moved / "new.txt").write_text("a new one")
    summary = build(moved, output, append=True)
    assert (summary.written_samples, summary.already_there) == (1, 1)
    assert summary.left_out["duplicate_id"].count == 2
    assert [line["image_id"] for line in ledger(output)] == ["img001", "img002"]


def test_each_append_remembers_its_images_and_an_overwrite_forgets_them(tmp_path: Path) -> None:
    output, one = tmp_path / "out", make_images(tmp_path / "one", 2)
    two = make_images(tmp_path / "two", 4)
    for number in range(2):
        (two / f"img{number:03}.png").unlink()
    build(one, output)
    build(two, output, append=True)
    shutil.move(one, tmp_path / "moved one")
    shutil.move(two, tmp_path / "moved two")
    summary = build([tmp_path / "moved one", tmp_path / "moved two"], output, append=True)
    assert (summary.already_there, summary.written_samples, summary.left_out) == (4, 0, {})
    assert len(list((output / ".shardwright/built").iterdir())) == 2
    build(tmp_path / "moved one", output, overwrite=True)
    assert len(list((output / ".shardwright/built").iterdir())) == 1
    summary = build(tmp_path / "moved two", output, append=True)
    assert (summary.already_there, summary.written_samples) == (0, 2)


@pytest.mark.parametrize("split", [None, "val=40%"])
def test_an_image_whose_time_alone_has_changed_is_there(tmp_path: Path, split: str | None) -> None:
    images, output = make_images(tmp_path / "images", 8), tmp_path / "out"
    build(images, output, split=split)
    for path in images.glob("*.png"):
        os.utime(path, (1, 1))
    summary = build(images, output, append=True)
    assert (summary.already_there, summary.left_out) == (8, {})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of images whose paths are relative."""
    make_images(tmp_path / "images", 3)
    monkeypatch.chdir(tmp_path)
    derive("images", derived_dir="store", recipe=write_recipe(tmp_path), encoders="sketch")
    return tmp_path / "store"


def test_a_second_data_set_of_the_same_paths_is_not_taken_for_what_pack_has_packed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    pack(derived_dir=store, output_dir=output, workers=1)
    before = records(output)
    assert build(Path("images"), output, append=True).already_there == 3
    elsewhere = tmp_path / "elsewhere"
    for number in range(3):
        save(elsewhere / f"images/img{number:03}.png", gradient(96, 64, 77 + number))
        (elsewhere / f"images/img{number:03}.txt").write_text("another one")
    monkeypatch.chdir(elsewhere)
    summary = build(Path("images"), output, append=True)
    assert (summary.already_there, summary.left_out["duplicate_id"].count) == (0, 3)
    assert records(output) == before
    moved = (tmp_path / "images").rename(tmp_path / "moved")
    assert build(moved, output, append=True).already_there == 3


def test_shards_without_the_content_of_their_images_go_by_the_path(
    store: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    (store / ".shardwright/facts.jsonl").unlink()
    pack(derived_dir=store, output_dir=output, workers=1)
    assert build(tmp_path / "images", output, append=True).already_there == 3
    moved = (tmp_path / "images").rename(tmp_path / "moved")
    summary = build(moved, output, append=True)
    assert (summary.already_there, summary.left_out["duplicate_id"].count) == (0, 3)
    assert ledger(output)[0]["detail"] == (
        "the shards have this image_id for images/img000.png, and what it was is not on record"
    )


def test_shards_made_from_others_know_their_images(tmp_path: Path) -> None:
    images, one = make_images(tmp_path / "images", 3), tmp_path / "one"
    build(images, one)
    recipe = write_recipe(tmp_path)
    flags = ("--recipe", recipe, "--encoders", "sketch", "--output-dir", tmp_path / "two")
    assert run("build", "--from", one, "--components", "t5", *flags).returncode == 0
    summary = build(images.rename(tmp_path / "moved"), tmp_path / "two", append=True)
    assert (summary.already_there, summary.left_out) == (3, {})


def test_an_append_that_was_interrupted_decides_as_it_did_before(tmp_path: Path) -> None:
    output, first = tmp_path / "out", make_images(tmp_path / "a", 3)
    build(first, output)
    other = make_images(tmp_path / "b", 5)
    for number in range(3):
        spoil(other, number)
    dry = build(other, output, append=True, dry_run=True)
    summary = build(other, output, append=True)
    assert (summary.written_samples, summary.left_out["duplicate_id"].count) == (2, 3)
    assert (dry.written_samples, dry.left_out["duplicate_id"].count) == (2, 3)
    assert len(records(output)) == 5
    with pytest.raises(UsageError, match="use only one"):
        build(other, output, append=True, overwrite=True)


def test_images_that_the_shards_have_under_other_ids_are_counted_with_an_example(
    tmp_path: Path,
) -> None:
    images, output = tmp_path / "im", tmp_path / "out"
    make_images(images / "x", 3)
    make_images(images / "y", 1)  # a copy from the beginning, which is not counted
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch", "-o", output)
    first = run("build", images, *flags, "--ids", "path", "--split", "val=40%")
    assert (first.returncode, "under_other_ids" in first.stdout) == (0, False)
    (images / "x").rename(images / "x2")
    save(images / "z" / "new.png", gradient(96, 64, 77))
    (images / "z" / "new.txt").write_text("a new one")
    for given, ids in ((images, "x2%2Fimg000.png"), (images / "x2", "img000.png")):
        done = run("build", given, *flags, "--append")
        assert done.returncode == 0, done.stdout + done.stderr
        path = images / "x2/img000.png"
        assert f"\nunder_other_ids: 3 (for example {path}, which is " in done.stdout
        assert (
            "\n\nnote: 3 images are in the shards twice now: they were there under other ids. "
            "Ids come from file names, from paths below IMAGES (--ids path) or from the captions "
            "file (--ids captions), so keep these as they were. To have each image once, build all "
            "of it again with --overwrite"
        ) in done.stdout
        assert ids in records(output / "train") | records(output / "val")
    again = run("build", images, *flags, "--append", "--json")
    assert '"under_other_ids": null' in again.stdout
