"""Why images failed: the reason stays until it is settled, and each image counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright import status
from tests.commands import run
from tests.derive.pictures import gradient, make_images, save, sketch, store_records


def reasons(derived: Path) -> dict[str, str]:
    path = derived / ".shardwright/failures.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["image_id"]: line["reason"] for line in map(json.loads, lines)}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four images, of which one is broken; their captions are in a file."""
    folder = make_images(tmp_path / "project/images", 4)
    rows = [f"img{n:03}.png,number {n}\n" for n in range(4)]
    (tmp_path / "project/captions.csv").write_text("file_name,caption\n" + "".join(rows))
    for text in folder.glob("*.txt"):
        text.unlink()
    (folder / "img001.png").write_bytes(b"broken")
    return folder


def test_a_run_without_captions_does_not_relabel_a_broken_image(
    images: Path, tmp_path: Path
) -> None:
    derived, given = tmp_path / "derived", tmp_path / "project/captions.csv"
    sketch(images, derived, captions=given)
    assert reasons(derived) == {"img001": "broken_image"}
    given.unlink()
    sketch(images, derived, captions="none")
    save(images / "img004.png", gradient(64, 64, seed=4))
    summary = sketch(images, derived)
    assert {reason: c.count for reason, c in summary.failed_by_reason.items()} == {
        "broken_image": 1,
        "no_caption": 1,
    }
    assert reasons(derived) == {"img001": "broken_image", "img004": "no_caption"}
    save(images / "img001.png", gradient(64, 64, seed=5))
    sketch(images, derived)
    assert reasons(derived)["img001"] == "no_caption", "it is no longer the file that was broken"


def test_a_broken_image_is_not_also_new_after_its_folder_has_moved(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "old/images", 4), tmp_path / "old/derived"
    (images / "img001.png").write_bytes(b"broken")
    sketch(images, derived)
    (tmp_path / "old").rename(tmp_path / "new")
    images, derived = tmp_path / "new/images", tmp_path / "new/derived"
    sketch(images, derived, components=["dinov3"])
    for _ in range(2):
        found = status(derived_dir=derived, workers=1)
        assert found.failures == 1
        assert found.update is not None
        assert found.update.new.count == 0
        sketch(images, derived)
        assert reasons(derived) == {"img001": "broken_image"}


def test_status_after_a_move_counts_a_broken_image_once(tmp_path: Path) -> None:
    make_images(tmp_path / "old/images", 4)
    (tmp_path / "old/images/img001.png").write_bytes(b"broken")
    flags = ("--derived-dir", "derived", "--encoders", "sketch")
    assert run("derive", "images", *flags, cwd=tmp_path / "old").returncode == 3
    (tmp_path / "old").rename(tmp_path / "new")
    found = json.loads(run("status", "derived", "--json", cwd=tmp_path / "new").stdout)
    assert (found["failures"], found["update"]["new"]["count"]) == (1, 0)
    save(tmp_path / "new/images/img001.png", gradient(64, 64))
    found = json.loads(run("status", "derived", "--json", cwd=tmp_path / "new").stdout)
    assert found["update"]["new"]["count"] == 1, "it has changed since, so it is tried again"


def test_a_dry_run_counts_the_images_that_would_fail(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 6), tmp_path / "derived"
    (images / "img001.png").write_bytes(b"")
    (images / "img002.png").write_bytes(b"no picture")
    (images / "img003.txt").write_text("  \n")
    planned = sketch(images, derived, dry_run=True)
    done = sketch(images, derived)

    def counted(summary: Any) -> dict[str, int]:  # noqa: ANN401
        return {reason: found.count for reason, found in summary.failed_by_reason.items()}

    assert counted(planned) == counted(done) == {"broken_image": 2, "no_caption": 1}
    assert (planned.derived, planned.failed) == (done.derived, done.failed) == (3, 3)
    assert {n: part.to_make for n, part in planned.components.items()} == {
        n: part.made for n, part in done.components.items()
    }
    flags = ("--derived-dir", tmp_path / "other", "--encoders", "sketch", "--dry-run")
    shown = run("derive", images, *flags)
    assert shown.returncode == 3
    assert "would derive 3 images" in shown.stdout
    assert "  broken_image: 2 (for example" in shown.stdout
    assert "6 images: 3 to derive, 0 already complete, 3 cannot be derived" in shown.stderr


def test_an_image_whose_disk_was_away_is_tried_again(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    disk = tmp_path / "disk"
    disk.mkdir()
    (images / "img001.png").rename(disk / "img001.png")
    (images / "img001.png").symlink_to(disk / "img001.png")
    disk.rename(tmp_path / "away")
    sketch(images, derived)
    assert reasons(derived) == {"img001": "unreadable"}
    (tmp_path / "away").rename(disk)
    assert sketch(images, derived).derived == 1
    assert reasons(derived) == {}
    assert len(store_records(derived)) == 3


def edited(images: Path, derived: Path) -> tuple[int, int, dict[str, int]]:
    """Count the new images in status and in a dry run, and what would fail there."""
    found = status(derived).update
    assert found is not None
    summary = sketch(images, derived, dry_run=True)
    failed = {reason: count.count for reason, count in summary.failed_by_reason.items()}
    return found.new.count, summary.derived, failed


def test_a_bad_caption_is_forgotten_once_another_one_is_given(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    bad = images / "img001.txt"
    bad.write_bytes(b"\xff\xfe\xfd")
    given = tmp_path / "captions.csv"
    given.write_text("file_name,caption\nimg000.png,first\n")
    sketch(images, derived, captions=given)
    assert reasons(derived) == {"img001": "caption_not_utf8"}
    assert edited(images, derived) == (0, 0, {"caption_not_utf8": 1})
    bad.unlink()
    assert edited(images, derived) == (0, 0, {"no_caption": 1})
    sketch(images, derived)
    assert reasons(derived) == {"img001": "no_caption"}
    given.write_text("file_name,caption\nimg000.png,first\nimg001.png,second\n")
    assert edited(images, derived) == (1, 1, {})
    bad.write_text(" ")
    assert edited(images, derived) == (1, 1, {})
    sketch(images, derived)
    assert reasons(derived) == {}


def test_a_blank_caption_is_no_new_image_until_it_is_written(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    blank = images / "img001.txt"
    blank.write_text(" ")
    sketch(images, derived)
    assert reasons(derived) == {"img001": "no_caption"}
    assert edited(images, derived) == (0, 0, {"no_caption": 1})
    blank.write_text("no longer blank")
    assert edited(images, derived) == (1, 1, {})


def test_a_broken_image_is_no_new_image_although_its_caption_has_changed(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 3), tmp_path / "derived"
    (images / "img001.png").write_bytes(b"broken")
    sketch(images, derived)
    (images / "img001.txt").write_text("another text")
    assert edited(images, derived) == (0, 0, {"broken_image": 1})
    save(images / "img001.png", gradient(64, 64, seed=5))
    assert edited(images, derived) == (1, 1, {})
