"""An append looks at the images each time: what was left out may be fixed, and files may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright import Progress
from tests.building.builds import build, reasons, records, spoil, tars, write_recipe
from tests.building.tarsets import write_set
from tests.commands import run
from tests.derive.pictures import gradient, make_images, save

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Six images, one that is broken, and one without a caption."""
    images = make_images(tmp_path / "images", 6)
    (images / "broken.png").write_bytes(b"no picture")
    (images / "broken.txt").write_text("a picture that is broken")
    save(images / "empty.png", gradient(96, 64, 20))
    (images / "empty.txt").write_text("")
    return images


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def append(images: Path, output: Path) -> tuple[int, str]:
    """Append by the command; give its exit code, and what it prints."""
    words = ("--recipe", write_recipe(images.parent), "--encoders", "sketch", "--append")
    done = run("build", images, "-o", output, *words)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("split", [None, "val=40%"])
def test_the_advice_to_fix_what_failed_and_append_works_after_an_append_too(
    images: Path, output: Path, split: str | None
) -> None:
    build(images, output, split=split)
    make_images(images, 8)
    code, printed = append(images, output)
    assert code == 3
    assert "written_samples: 2\n" in printed
    assert "Fix what failed and run it again with --append" in printed
    save(images / "broken.png", gradient(96, 64, 21))
    code, printed = append(images, output)
    assert (code, "written_samples: 1\n" in printed) == (3, True), printed
    (images / "empty.txt").write_text("a caption that was empty")
    code, printed = append(images, output)
    assert (code, "written_samples: 1\n" in printed) == (0, True), printed
    folders = [output / part for part in ("train", "val")] if split else [output]
    found = {image_id: r["caption"] for each in folders for image_id, r in records(each).items()}
    assert found["broken"] == "a picture that is broken"
    assert found["empty"] == "a caption that was empty"
    code, printed = append(images, output)
    assert (code, "nothing to build: 10 samples are already in" in printed) == (0, True), printed


def test_a_picture_that_is_replaced_after_an_append_is_not_taken_for_the_one_in_the_shards(
    images: Path, output: Path
) -> None:
    build(images, output)
    make_images(images, 8)
    build(images, output, append=True)
    before = tars(output)
    save(images / "img007.png", gradient(96, 64, 70))
    code, printed = append(images, output)
    assert code == 3
    assert "already_there: 7\n" in printed
    assert "duplicate_id: 1" in printed
    assert reasons(output)["img007.png"] == "duplicate_id"
    assert tars(output) == before


def test_a_repeated_append_without_anything_new_writes_nothing_and_counts_the_same(
    images: Path, output: Path
) -> None:
    write_set(images / "a.tar", ["a0", "a1"])
    spoil(images, 1)
    build(images, output)
    make_images(images, 9)
    (images / "img001.png").unlink()
    first = build(images, output, append=True)
    before, manifest = tars(output), (output / ".shardwright/manifest.json").read_bytes()
    assert first.failed == 3
    for _ in range(2):
        again = build(images, output, append=True)
        assert (again.inputs, again.written_samples, again.already_there) == (13, 0, 10)
        assert again.left_out == first.left_out
    assert tars(output) == before
    assert (output / ".shardwright/manifest.json").read_bytes() == manifest


class _Measured(Progress):
    total = 0

    def phase(self, name: str, total: int, unit: str) -> None:
        self.total += total * (name == "measure images")


def test_a_repeated_append_measures_only_what_is_not_in_the_shards(
    images: Path, output: Path
) -> None:
    build(images, output)
    make_images(images, 8)
    for expected in (4, 2):  # broken.png and empty.png, at first with two new ones
        measured = _Measured()
        build(images, output, append=True, progress=measured)
        assert measured.total == expected
