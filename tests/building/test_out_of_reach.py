"""Inputs that are out of reach, replaced, moved or named alike: nothing is lost quietly."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardwright import Progress, TooManyFailuresError, UsageError, verify
from shardwright.building import finish
from shardwright.building.commits import Commits
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.moving import move_shard
from tests.building.builds import build, interrupt, ledger, reasons, records, tars
from tests.building.tarsets import picture, write_set, write_tar
from tests.derive.pictures import gradient, make_images, save
from tests.faults import contents

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 12, ((96, 64),))


def test_images_that_were_out_of_reach_for_a_while_are_built_by_the_next_run(
    images: Path, tmp_path: Path
) -> None:
    build(images, tmp_path / "unbroken", shard_size=3)
    interrupt(images, tmp_path / "out", 1, shard_size=3)
    away = images.rename(tmp_path / "away")
    make_images(images, 0)
    images.mkdir()
    for name in ("img011.png", "img011.txt"):
        (images / name).write_bytes((away / name).read_bytes())
    interrupt(images, tmp_path / "out", 3, shard_size=3)  # some tasks find none of their images
    for path in images.iterdir():
        path.unlink()
    images.rmdir()
    away.rename(images)
    summary = build(images, tmp_path / "out", shard_size=3)
    assert (summary.written_samples, summary.left_out) == (12, {})
    assert tars(tmp_path / "out") == tars(tmp_path / "unbroken")


class Removing(Progress):
    """Takes some images away when all are planned."""

    def __init__(self, *paths: Path) -> None:
        self.contents = {path: path.read_bytes() for path in paths}

    def phase(self, name: str, total: int, unit: str) -> None:
        if name == "build":
            for path in self.contents:
                path.unlink()

    def put_back(self) -> None:
        for path, data in self.contents.items():
            path.write_bytes(data)


@pytest.mark.parametrize("split", [None, "val=40%"])
def test_once_shards_are_published_images_that_come_back_are_left_to_append(
    images: Path, tmp_path: Path, split: str | None
) -> None:
    removing = Removing(*(images / f"img{number:03}.png" for number in range(4)))
    options: dict[str, Any] = {"shard_size": 2, "split": split}
    moves = iter(range(2))

    def moving(*given: Any) -> ShardEntry:  # noqa: ANN401
        if next(moves, None) is None:
            raise KeyboardInterrupt
        return move_shard(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finish, "move_shard", moving)
        with pytest.raises(KeyboardInterrupt):
            build(images, tmp_path / "out", progress=removing, **options)
    removing.put_back()
    again = build(images, tmp_path / "out", **options)  # which compares all counts
    assert (again.written_samples, again.left_out["gone"].count) == (8, 4)
    added = build(images, tmp_path / "out", append=True, **options)
    assert (added.written_samples, added.already_there) == (4, 8)
    assert len(records(tmp_path / "out") if split is None else samples(tmp_path / "out")) == 12


def samples(output: Path) -> list[str]:
    return [each for part in ("train", "val") for each in records(output / part)]


def test_a_limit_holds_when_images_come_back_after_others_have_taken_their_place(
    images: Path, tmp_path: Path
) -> None:
    removing = Removing(images / "img000.png", images / "img001.png")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Commits, "finalize", raising)
        with pytest.raises(KeyboardInterrupt):
            build(images, tmp_path / "out", progress=removing, limit=4, shard_size=2)
    (images / "img000.png").write_bytes(removing.contents[images / "img000.png"])
    again = build(images, tmp_path / "out", limit=4, shard_size=2)
    assert again.written_samples == 4
    assert len(records(tmp_path / "out")) == 4


def raising(*_: object) -> None:
    raise KeyboardInterrupt


def test_many_replaced_images_do_not_stop_a_build_and_append_adds_them(
    tmp_path: Path,
) -> None:
    images = tmp_path / "images"
    for number in range(130):
        save(images / f"img{number:03}.jpg", gradient(96, 64, seed=number), quality=95)
        (images / f"img{number:03}.txt").write_text("a gradient")
    good = {path: path.read_bytes() for path in images.glob("*.jpg")}
    for path, data in good.items():
        path.write_bytes(data[:-300])  # which only reading finds out
    with pytest.raises(TooManyFailuresError) as caught:
        build(images, tmp_path / "out", shard_size=3)
    assert str(caught.value).endswith(
        "fix the cause and run the same command again, which keeps the finished shards; then add "
        "images that you replaced with --append"
    )
    for path, data in good.items():
        path.write_bytes(data)
    again = build(images, tmp_path / "out", shard_size=3)
    assert again.written_samples == 0
    assert set(reasons(tmp_path / "out").values()) == {"changed"}
    added = build(images, tmp_path / "out", shard_size=3, append=True)
    assert added.written_samples == 130


def test_another_image_of_the_same_id_is_not_taken_for_the_one_that_is_there(
    images: Path, tmp_path: Path
) -> None:
    write_set(tmp_path / "p1.tar", ["000", "001"])
    write_set(tmp_path / "p2.tar", ["001", "002"])
    build(tmp_path / "p1.tar", tmp_path / "out")
    added = build(tmp_path / "p2.tar", tmp_path / "out", append=True)
    assert (added.written_samples, added.already_there) == (1, 0)
    (left,) = ledger(tmp_path / "out")
    assert (left["image_id"], left["reason"]) == ("001", "duplicate_id")
    assert left["detail"] == (
        f"the shards have this image_id for {tmp_path}/p1.tar/001.jpg, which is another image"
    )
    again = build(tmp_path / "p1.tar", tmp_path / "out", append=True)
    assert (again.written_samples, again.already_there) == (0, 2)
    others = make_images(tmp_path / "others", 2, ((96, 72),))
    build(images, tmp_path / "files")
    assert reasons(tmp_path / "files") == {}
    both = build(others, tmp_path / "files", append=True)
    assert (both.written_samples, both.left_out["duplicate_id"].count) == (0, 2)


def test_a_moved_folder_has_the_same_images(images: Path, tmp_path: Path) -> None:
    build(images, tmp_path / "out")
    moved = images.rename(tmp_path / "moved")
    save(moved / "new.png", gradient(96, 64))
    (moved / "new.txt").write_text("a new one")
    added = build(moved, tmp_path / "out", append=True)
    assert (added.written_samples, added.already_there, added.left_out) == (1, 12, {})


def test_the_same_words_in_another_folder_are_other_images(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(images, tmp_path / "absolute", 1, shard_size=3)
    monkeypatch.chdir(tmp_path)
    interrupt(Path("images"), tmp_path / "out", 1, shard_size=3)
    make_images(tmp_path / "sub/images", 12, ((96, 64),))
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(UsageError) as caught:
        build(Path("images"), tmp_path / "out", shard_size=3, recipe=tmp_path / "small.toml")
    assert f"IMAGES was {images} and is {tmp_path}/sub/images" in str(caught.value)
    assert build(images, tmp_path / "absolute", shard_size=3).written_samples == 12


def test_the_same_build_in_another_folder_leaves_the_same_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("one", "another"):
        make_images(tmp_path / name / "images", 6, ((96, 64),))
        for image in (tmp_path / name / "images").iterdir():
            os.utime(image, (1_700_000_000,) * 2)
        monkeypatch.chdir(tmp_path / name)
        build(Path("images"), Path("out"))
        found.append(contents(Path("out/.shardwright")))
        assert json.loads(found[-1].pop("build/plan.json") or b"")["at"] == str(tmp_path / name)
    assert found[0] == found[1]


def test_a_part_of_a_split_that_got_no_sample_is_no_damage(images: Path, tmp_path: Path) -> None:
    summary = build(images, tmp_path / "out", split="val=0.01%")
    assert list(summary.parts) == ["train"]
    assert not verify(tmp_path / "out").damaged


def test_overwrite_goes_on_with_the_recipe_and_encoders_of_the_shards(
    images: Path, tmp_path: Path
) -> None:
    build(images, tmp_path / "out", fit="bucket")
    before = tars(tmp_path / "out")
    (tmp_path / "out/bucket_96x64/shard-000000.tar").write_bytes(b"damaged")
    build(images, tmp_path / "out", overwrite=True, recipe=None, encoders=None)
    assert tars(tmp_path / "out") == before


def test_the_index_of_a_finished_shard_that_is_lost_costs_only_that_shard(
    images: Path, tmp_path: Path
) -> None:
    build(images, tmp_path / "unbroken", shard_size=3)
    interrupt(images, tmp_path / "out", 2, shard_size=3)
    stage = tmp_path / "out/.shardwright/build"
    lost = next(stage.glob("*/.shardwright/index/bucket_96x64/*.idx"))
    lost.unlink()
    summary = build(images, tmp_path / "out", shard_size=3)
    assert summary.written_samples == 12
    assert tars(tmp_path / "out") == tars(tmp_path / "unbroken")


def test_json_with_a_number_that_is_not_one_is_read_as_img2dataset_writes_it(
    tmp_path: Path,
) -> None:
    fields = {
        "caption": "a hill",
        "similarity": float("nan"),
        "width": float("inf"),
        "LICENSE": "?",
    }
    text = json.dumps(fields).encode()
    assert b"NaN" in text
    write_tar(tmp_path / "a.tar", [("k.png", picture(96, 64)), ("k.json", text)])
    build(tmp_path / "a.tar", tmp_path / "out")
    record = records(tmp_path / "out")["k"]
    assert (record["caption"], record["LICENSE"], record["width"]) == ("a hill", "?", 96)
    assert "similarity" not in record


def test_a_compressed_tar_says_what_to_do(images: Path, tmp_path: Path) -> None:
    tar = write_set(tmp_path / "a.tar", ["k"])
    tar.write_bytes(gzip.compress(tar.read_bytes()))
    build([images, tar], tmp_path / "out")
    (left,) = ledger(tmp_path / "out")
    assert left["reason"] == "compressed_tar"
    assert left["detail"] == "is compressed; unpack it with gunzip first"


def test_an_image_replaced_by_an_older_file_is_outdated_and_no_damage(
    images: Path, tmp_path: Path
) -> None:
    build(images, tmp_path / "out")
    save(tmp_path / "older.png", gradient(96, 64, seed=50))
    os.utime(tmp_path / "older.png", (1, 1))
    (tmp_path / "older.png").rename(images / "img003.png")
    report = verify(tmp_path / "out", against=images)
    assert (report.damaged, report.outdated) == (False, 1)
