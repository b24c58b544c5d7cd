"""A picture that kills the process which looks at it is left out, and all others are taken."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from shardwright.layout import JSONL_NAME
from tests.building.builds import RECIPE, ledger, records, write_recipe
from tests.building.tarsets import write_tar
from tests.derive.pictures import make_images, store_records
from tests.sick import DEADLY, PIXELS, sick

pytestmark = pytest.mark.timeout(600)

KILLED = "the process that read it died by signal 9 (Killed), twice"
CRASHED = "the process that read it died by signal 11 (Segmentation fault), twice"
SELECTIVE = RECIPE.replace("[images]", "[images]\nmin_side = 32")


def images_of(folder: Path, count: int, deadly: dict[int, bytes]) -> Path:
    """Write images, some of which are deadly."""
    images = make_images(folder, count, ((96, 64),))
    for number, begin in deadly.items():
        (images / f"img{number:03}.png").write_bytes(begin)
    return images


def names(count: int, deadly: dict[int, bytes]) -> list[str]:
    return [f"img{number:03}" for number in range(count) if number not in deadly]


def expected(deadly: dict[int, bytes]) -> dict[str, tuple[str, str]]:
    """Give the reasons by the names of the images."""
    how = {DEADLY: KILLED, PIXELS: CRASHED}
    return {f"img{n:03}.png": ("decoder_died", how[begin]) for n, begin in deadly.items()}


def require_left_out(done: subprocess.CompletedProcess[str], count: int, example: Path) -> None:
    """Check what a command says of pictures that it has left out."""
    assert done.returncode == 3, done.stderr
    assert f"  decoder_died: {count} (for example {example})" in done.stdout
    assert "--workers" not in done.stderr + done.stdout


SOME: list[tuple[int, dict[int, bytes]]] = [
    (3, {1: DEADLY}),
    (3, {1: PIXELS}),
    (3, {0: DEADLY, 1: PIXELS, 2: DEADLY}),
    (90, {0: DEADLY, 41: PIXELS, 42: DEADLY, 89: DEADLY}),
]
IDS = ["few", "few, pixels", "all", "many"]


@pytest.mark.parametrize(("count", "deadly"), SOME, ids=IDS)
def test_build_names_deadly_pictures_and_takes_all_others(
    tmp_path: Path, count: int, deadly: dict[int, bytes]
) -> None:
    images, out = images_of(tmp_path / "images", count, deadly), tmp_path / "out"
    command = ("build", images, "--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    done = sick(tmp_path / "none", *command, "--output-dir", out)
    example = images / f"img{min(deadly):03}.png"
    require_left_out(done, len(deadly), example)
    assert f"\nwritten_samples: {count - len(deadly)}\n" in done.stdout
    assert sorted(records(out)) == names(count, deadly)
    found = {
        Path(line["image_path"]).name: (line["reason"], line["detail"]) for line in ledger(out)
    }
    assert found == expected(deadly)
    again = sick(tmp_path / "none", *command, "--output-dir", out, "--append")
    require_left_out(again, len(deadly), example)
    assert "\nwritten_samples: 0\n" in again.stdout
    assert sorted(records(out)) == names(count, deadly)


@pytest.mark.parametrize(("count", "deadly"), SOME, ids=IDS)
def test_derive_names_deadly_pictures_and_takes_all_others(
    tmp_path: Path, count: int, deadly: dict[int, bytes]
) -> None:
    images, derived = images_of(tmp_path / "images", count, deadly), tmp_path / "derived"
    command = ("derive", images, "--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    for derived_now in (count - len(deadly), 0):
        done = sick(tmp_path / "none", *command, "--derived-dir", derived)
        require_left_out(done, len(deadly), images / f"img{min(deadly):03}.png")
        assert f"\nderived: {derived_now}\n" in done.stdout
        there = (derived / JSONL_NAME).exists()
        written = [record["image_id"] for record in store_records(derived)] if there else []
        assert written == names(count, deadly)
        lines = (derived / ".shardwright" / "failures.jsonl").read_text().splitlines()
        failures = [json.loads(line) for line in lines]
        found = {Path(f["image_path"]).name: (f["reason"], f["detail"]) for f in failures}
        assert found == expected(deadly)


@pytest.mark.parametrize(("count", "deadly"), SOME, ids=IDS)
@pytest.mark.parametrize("command", ["build", "derive"])
def test_several_devices_name_deadly_pictures_and_take_all_others(
    tmp_path: Path, command: str, count: int, deadly: dict[int, bytes]
) -> None:
    images, out = images_of(tmp_path / "images", count, deadly), tmp_path / "out"
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch", "--device", "cpu:2")
    output = {"build": "--output-dir", "derive": "--derived-dir"}[command]
    done = sick(tmp_path / "none", command, images, *flags, output, out)
    assert done.returncode == 3, done.stderr
    listed = {"build": "ledger.jsonl", "derive": "failures.jsonl"}[command]
    lines = (out / ".shardwright" / listed).read_text().splitlines()
    left = [json.loads(line) for line in lines]
    found = {Path(each["image_path"]).name: (each["reason"], each["detail"]) for each in left}
    assert found == expected(deadly)
    if command == "build":
        made = sorted(records(out))
    else:
        made = [r["image_id"] for r in store_records(out)] if (out / JSONL_NAME).exists() else []
    assert made == names(count, deadly)


def test_a_dry_run_a_recipe_that_selects_and_status_survive_a_deadly_picture(
    tmp_path: Path,
) -> None:
    images, derived = images_of(tmp_path / "images", 3, {1: DEADLY}), tmp_path / "derived"
    recipe = write_recipe(tmp_path, SELECTIVE)
    command = ("derive", images, "--recipe", recipe, "--encoders", "sketch")
    for dry in (["--dry-run"], []):
        done = sick(tmp_path / "none", *command, "--derived-dir", derived, *dry)
        require_left_out(done, 1, images / "img001.png")
    assert [record["image_id"] for record in store_records(derived)] == ["img000", "img002"]
    shutil.copy(images / "img001.png", images / "other.png")
    (images / "other.txt").write_text("a caption")
    seen = sick(tmp_path / "none", "status", derived)
    assert seen.returncode == 0, seen.stderr
    assert f"  derive 1 new image (for example {images}/other.png)\n" in seen.stdout


def test_a_deadly_member_of_a_tar_is_named_and_all_others_are_taken(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 300, ((96, 64),))
    members = []
    for number in range(300):
        data = (images / f"img{number:03}.png").read_bytes()
        members += [(f"{number:03}.png", DEADLY if number in (0, 270) else data)]
        members += [(f"{number:03}.txt", b"a caption")]
    write_tar(tmp_path / "a.tar", members)
    command = ("build", tmp_path / "a.tar", "--recipe", write_recipe(tmp_path))
    flags = ("--encoders", "sketch", "--output-dir", tmp_path / "out")
    done = sick(tmp_path / "none", *command, *flags)
    require_left_out(done, 2, tmp_path / "a.tar" / "000.png")
    assert len(records(tmp_path / "out")) == 298


def test_a_deadly_picture_in_one_of_several_folders_costs_no_other_image(tmp_path: Path) -> None:
    folders = [make_images(tmp_path / name, 5, ((96, 64),)) for name in ("a", "b", "c")]
    (folders[1] / "img002.png").write_bytes(DEADLY)
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch", "--ids", "path")
    done = sick(tmp_path / "none", "build", *folders, *flags, "--output-dir", tmp_path / "out")
    assert done.returncode == 3, done.stderr
    example = folders[1] / "img002.png"
    assert f"  decoder_died: 1 (for example {example})" in done.stdout
    assert "--workers" not in done.stderr + done.stdout
