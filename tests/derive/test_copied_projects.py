"""Copied and moved projects, images, store and shards: what is deleted or renamed there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import run
from tests.derive.pictures import gradient, make_images, save, store_records
from tests.derive.updates import TINY, facts, remove, rename
from tests.faults import contents

STORE = ("--derived-dir", "derived")
PACK = ("pack", *STORE, "--output-dir", "shards")
Transfer = Callable[[Path], Path]


def done(where: Path, *words: str) -> str:
    """Run a command in a project, and give what was written to the terminal."""
    ended = run(*words, cwd=where)
    assert ended.returncode in (0, 3), ended.stderr  # 3 if an image could not be derived
    return ended.stdout + ended.stderr


def derive(where: Path, *words: str) -> str:
    return done(where, "derive", *words, *STORE, "--encoders", "sketch")


def ids(project: Path) -> set[str]:
    return {record["image_id"] for record in store_records(project / "derived")}


def failed(project: Path) -> list[str]:
    path = project / "derived/.shardwright/failures.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(json.loads(line)["image_path"] for line in lines)


def copied(project: Path) -> Path:
    """Copy as ``cp -a`` does."""
    return Path(shutil.copytree(project, project.with_name("new")))


def copied_with_new_times(project: Path) -> Path:
    return Path(shutil.copytree(project, project.with_name("new"), copy_function=shutil.copyfile))


def moved(project: Path) -> Path:
    return project.rename(project.with_name("new"))


transferred = pytest.mark.parametrize("transfer", [copied, copied_with_new_times, moved])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A project of twenty images, derived and packed."""
    make_images(tmp_path / "old/photos", 20, TINY)
    derive(tmp_path / "old", "photos")
    done(tmp_path / "old", *PACK)
    return tmp_path / "old"


@transferred
@pytest.mark.parametrize("looks", ["not", "before", "after"])
def test_what_is_deleted_from_a_copied_or_moved_project_leaves_its_store_and_shards(
    old: Path, transfer: Transfer, looks: str
) -> None:
    new = transfer(old)
    if looks == "before":
        derive(new, "photos")
    for number in range(3):
        remove(new / "photos", f"img{number:03}")
    if looks == "after":
        derive(new, "photos")
    said = done(new, "status", "derived")
    assert "remove 3 gone images with --prune (for example photos/img000.png)" in said
    assert "Use --prune to remove them" in derive(new, "photos", "--update")
    listed = "".join(f"  photos/img{number:03}.png\n" for number in range(3))
    said = derive(new, "photos", "--update", "--prune")
    assert f"removing the records and arrays of 3 images:\n{listed}" in said
    assert len(ids(new)) == 17
    assert "3 removed" in done(new, *PACK, "--sync")
    assert not any(b"img001" in shard.read_bytes() for shard in new.rglob("*.tar"))
    assert "gone" not in done(new, "status", "derived")


@transferred
@pytest.mark.parametrize("looks", [False, True])
def test_what_is_deleted_from_a_copied_or_moved_project_is_gone_also_by_absolute_paths(
    tmp_path: Path, transfer: Transfer, looks: bool
) -> None:
    make_images(tmp_path / "old/photos", 10, TINY)
    derive(tmp_path / "old", str(tmp_path / "old/photos"))
    new = transfer(tmp_path / "old")
    if looks:
        derive(new, "photos")
    for number in range(4):
        remove(new / "photos", f"img{number:03}")
    for given in (new, new / "photos"):  # the folder above is recognised too
        assert "pruned: 4" in derive(new, str(given), "--prune", "--dry-run")
    assert "pruned: 4" in derive(new, "photos", "--prune")
    assert len(ids(new)) == 6


def test_what_is_deleted_from_a_copy_is_gone_also_if_the_command_runs_in_the_original(
    old: Path,
) -> None:
    new = copied(old)
    remove(new / "photos", "img001")
    flags = ("--derived-dir", new / "derived", "--prune")
    for _ in range(2):
        assert "pruned: 1" in run("derive", new / "photos", *flags, "--dry-run", cwd=old).stdout
        run("derive", new / "photos", "--derived-dir", new / "derived", cwd=old)
    assert "pruned: 1" in run("derive", new / "photos", *flags, cwd=old).stdout


@transferred
def test_an_image_that_is_renamed_in_a_copied_or_moved_project_is_there_once(
    old: Path, transfer: Transfer
) -> None:
    new = transfer(old)
    for number in range(3):
        remove(new / "photos", f"img{number:03}")
    rename(new / "photos", "img010", "other")
    assert "rename 1 image (for example img010 to other)" in done(new, "status", "derived")
    derive(new, "photos", "--update", "--prune")
    assert ids(new) == {*(f"img{n:03}" for n in range(3, 20) if n != 10), "other"}


@transferred
@pytest.mark.parametrize("kept", [8, 0])
def test_what_is_not_decided_in_a_copied_or_moved_project_is_listed_with_the_command(
    old: Path, transfer: Transfer, kept: int
) -> None:
    before = contents(old)
    new = transfer(old)
    for number in range(kept, 20):
        remove(new / "photos", f"img{number:03}")
    save(new / "photos/more.png", gradient(16, 16, seed=50))
    (new / "photos/more.txt").write_text("one more")
    command = f"shardwright derive photos --update --prune-below {old}/photos --derived-dir derived"
    listed = [f"{old}/photos/img{number:03}.png\n" for number in range(kept, 20)]
    for _ in range(2):  # it is not forgotten by the first run
        said = done(new, "status", "derived")
        assert all(name in said for name in listed[:10])
        assert command in said
        for words in (["--update"], ["--update", "--prune"]):
            said = derive(new, "photos", *words)
            assert all(name in said for name in listed[:10])
            assert command in said
            assert "Use --prune" not in said
            assert "pruned:" not in said
    assert len(ids(new)) == 21
    assert f"pruned: {20 - kept}" in done(new, *command.split()[1:])
    assert len(ids(new)) == kept + 1
    assert command not in done(new, "status", "derived")
    assert not old.exists() or contents(old) == before


@transferred
def test_what_is_deleted_from_two_folders_of_a_copied_or_moved_project_is_gone_from_each(
    tmp_path: Path, transfer: Transfer
) -> None:
    for name in ("train", "val"):
        folder = make_images(tmp_path / "old" / name, 5, TINY)
        for path in folder.iterdir():
            path.rename(folder / f"{name}-{path.name}")
        derive(tmp_path / "old", name)
    new = transfer(tmp_path / "old")
    for name in ("train", "val"):
        for number in (1, 2):
            remove(new / name, f"{name}-img{number:03}")
    said = done(new, "status", "derived")
    for name in ("train", "val"):
        assert f"remove 2 gone images with --prune (for example {name}/{name}-img001.png)" in said
        assert f"pruned: 2 (for example {name}/{name}-img001.png)" in derive(new, name, "--prune")
    assert len(ids(new)) == 6


def test_a_moved_project_is_recognised_while_another_one_is_at_its_old_place(old: Path) -> None:
    new = moved(old)
    make_images(old / "photos", 20, TINY)
    for number in range(3):
        remove(new / "photos", f"img{number:03}")
    assert "pruned: 3" in derive(new, "photos", "--prune")


def test_what_is_not_decided_in_a_copy_stays_listed_after_a_captions_file_is_given(
    old: Path,
) -> None:
    new = copied(old)
    for number in range(12):
        remove(new / "photos", f"img{number:03}")
    (new / "captions.csv").write_text("file_name,caption\nimg015.png,another one\n")
    listed = f"derive photos --update --prune-below {old}/photos --derived-dir derived"
    for _ in range(2):
        assert listed in derive(new, "photos", "--update", "--captions", "captions.csv")
        assert listed in done(new, "status", "derived")


def test_a_plain_update_does_not_offer_prune_for_what_only_prune_below_removes(
    old: Path, tmp_path: Path
) -> None:
    (old / "photos").rename(tmp_path / "train")
    for number in range(5):
        remove(tmp_path / "train", f"img{number:03}")
    said = derive(old, str(tmp_path / "train"), "--update")
    assert "5 images on record are not found" in said
    assert "--prune-below" in said
    assert "Use --prune to" not in said


def test_images_moved_into_the_folder_of_the_store_are_not_gone_where_the_others_stayed(
    tmp_path: Path,
) -> None:
    make_images(tmp_path / "photos", 5, TINY)
    project = tmp_path / "project"
    project.mkdir()
    derive(project, str(tmp_path / "photos"))
    for number in range(3):
        for suffix in (".png", ".txt"):
            target = project / f"photos/img{number:03}{suffix}"
            target.parent.mkdir(exist_ok=True)
            (tmp_path / f"photos/img{number:03}{suffix}").rename(target)
    said = derive(project, "photos", "--update", "--prune")
    assert "pruned:" not in said
    assert "not found" not in said
    assert len(ids(project)) == 5


def test_a_copy_without_its_store_prunes_nothing(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old / "photos", tmp_path / "new/photos")
    remove(tmp_path / "new/photos", "img001")
    said = run(
        *("derive", "photos", "--derived-dir", old / "derived", "--encoders", "sketch"),
        *("--update", "--prune"),
        cwd=tmp_path / "new",
    )
    assert "pruned:" not in said.stdout
    assert len(ids(old)) == 20


@pytest.fixture
def by_path(tmp_path: Path) -> Path:
    """A project of two folders with the same names, whose ids are their paths."""
    for seed, name in enumerate("xy"):
        for number in range(5):
            image = tmp_path / f"old/photos/{name}/{number}.png"
            save(image, gradient(24, 16, seed=10 * seed + number))
            image.with_suffix(".txt").write_text(f"{name}, number {number}")
    derive(tmp_path / "old", "photos", "--ids", "path")
    return tmp_path / "old"


@transferred
@pytest.mark.parametrize("flags", [[], ["--update"]])
def test_a_subfolder_of_a_copied_or_moved_project_keeps_its_ids_by_path(
    by_path: Path, transfer: Transfer, flags: list[str]
) -> None:
    before = ids(by_path)
    new = transfer(by_path)
    assert "nothing to derive" in derive(new, "photos/x", *flags)
    assert ids(new) == before
    (new / "photos/y/1.png").unlink()
    assert "pruned: 1 (for example photos/y/1.png)" in derive(new, "photos/y", "--prune")
    assert ids(new) == before - {"y%2F1.png"}


def test_a_subfolder_of_images_that_moved_without_their_store_keeps_its_ids_by_path(
    by_path: Path, tmp_path: Path
) -> None:
    before = ids(by_path)
    (by_path / "photos").rename(tmp_path / "photos")
    assert "nothing to derive" in derive(by_path, str(tmp_path / "photos/x"), "--update")
    assert ids(by_path) == before


@transferred
def test_an_image_that_failed_counts_once_in_a_copied_or_moved_project(
    old: Path, transfer: Transfer
) -> None:
    for number in (1, 2, 3):
        (old / f"photos/bad{number}.png").write_bytes(b"broken")
    derive(old, "photos")
    new = transfer(old)
    assert "new image" not in done(new, "status", "derived")
    save(new / "photos/bad2.png", gradient(16, 16, seed=70))
    (new / "photos/bad2.txt").write_text("it is good now")
    (new / "photos/bad3.png").unlink()
    derive(new, "photos")
    assert failed(new) == [str(new / "photos/bad1.png")]
    assert "could not be derived: 1 image, listed in" in done(new, "status", "derived")
    assert len(ids(new)) == 21
    assert facts(new / "derived")["img001"]["image"]["path"] == str(new / "photos/img001.png")
