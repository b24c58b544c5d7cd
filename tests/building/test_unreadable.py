"""Images that cannot be read are not broken: they are reported so, and tried again."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shardwright import Progress, TooManyFailuresError
from shardwright.building.commits import Commits
from shardwright.deriving import decoders
from tests.building.builds import build, reasons, records, write_recipe
from tests.derive.pictures import make_images
from tests.sick import fail, sick

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE], ids=["EIO", "ESTALE"])
@pytest.mark.parametrize("command", ["build", "derive"])
def test_an_image_that_the_file_system_does_not_give_is_unreadable_and_made_when_it_does(
    images: Path, tmp_path: Path, command: str, number: int
) -> None:
    failing, recipe = tmp_path / "failing", write_recipe(tmp_path)
    place = "--output-dir" if command == "build" else "--derived-dir"
    flags = ("--recipe", recipe, "--encoders", "sketch", place, tmp_path / "out")
    fail(failing, number, "img002.png")
    done = sick(failing, command, images, *flags)
    assert done.returncode == 3, done.stderr
    assert f"  unreadable: 1 (for example {images}/img002.png)" in done.stdout
    assert "broken" not in done.stdout
    (failing / "img002.png").unlink()
    more = ["--append"] if command == "build" else []
    again = sick(failing, command, images, *flags, *more)
    assert again.returncode == 0, again.stderr
    assert "\nalready_" in again.stdout
    assert "derived: 1\n" in again.stdout or "written_samples: 1\n" in again.stdout
    if command == "build":
        assert sorted(records(tmp_path / "out")) == [f"img{n:03}" for n in range(6)]


class Failing(Progress):
    """Has an image fail to open once all are planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.monkeypatch, self.name, self.open = monkeypatch, name, open

    def phase(self, name: str, total: int, unit: str) -> None:
        if name == "build":
            self.monkeypatch.setattr(builtins, "open", self.opening)

    def opening(self, file: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as open
        if str(file).endswith(self.name):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self.open(file, *given, **named)


def test_an_image_that_cannot_be_read_at_work_is_tried_again_by_the_continued_build(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 6, ((96, 64),))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Commits, "finalize", raising)
        # Processes that are copies have the failing open, too, whatever other tests have imported.
        patched.setattr(decoders, "may_fork_to_read", lambda: True)
        with pytest.raises(KeyboardInterrupt):
            build(images, tmp_path / "out", shard_size=2, progress=Failing(patched, "img003.png"))
    again = build(images, tmp_path / "out", shard_size=2)
    assert (again.written_samples, again.kept_shards, again.left_out) == (6, 2, {})


def raising(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_picture_that_gives_an_error_of_the_disk_when_it_is_read_is_unreadable(
    images: Path, tmp_path: Path
) -> None:
    (images / "img001.png").unlink()
    (images / "img001.png").symlink_to("/proc/self/mem")  # whose first page is nobody's: EIO
    assert os.stat(images / "img001.png").st_size == 0
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    done = sick(tmp_path, "build", images, *flags, "--output-dir", tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert reasons(tmp_path / "out") == {"img001.png": "unreadable"}


@pytest.mark.parametrize("command", ["build", "derive"])
def test_a_picture_whose_decoder_hides_the_error_of_the_disk_is_unreadable(
    images: Path, tmp_path: Path, command: str
) -> None:
    # Its size is at its end, and Pillow only warns where that cannot be read.
    Image.effect_noise((300, 300), 80).save(images / "img002.tiff", compression="tiff_lzw")
    (images / "img002.png").unlink()
    (images / "img003.png").write_bytes(b"this is no picture")
    failing, recipe = tmp_path / "failing", write_recipe(tmp_path)
    place = "--output-dir" if command == "build" else "--derived-dir"
    flags = ("--recipe", recipe, "--encoders", "sketch", place, tmp_path / "out")
    fail(failing, errno.EIO, "img002.tiff", readable=1 << 15)
    done = sick(failing, command, images, *flags)
    assert done.returncode == 3, done.stderr
    assert f"  unreadable: 1 (for example {images}/img002.tiff)" in done.stdout
    assert f"  broken_image: 1 (for example {images}/img003.png)" in done.stdout


def test_a_plan_with_many_unreadable_images_in_a_row_is_not_kept(tmp_path: Path) -> None:
    images, failing = make_images(tmp_path / "images", 130, ((96, 64),)), tmp_path / "failing"
    made = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    flags = (*made, "--output-dir", tmp_path / "out")
    fail(failing, errno.EIO, *(f"img{number:03}.png" for number in range(20, 119)))
    few = sick(failing, "build", images, *flags, "--dry-run")
    assert few.returncode == 3, few.stderr
    assert "  unreadable: 99 " in few.stdout
    fail(failing, errno.EIO, "img119.png")
    for _ in range(2):
        done = sick(failing, "build", images, *flags)
        assert done.returncode == 1, done.stdout
        assert done.stderr.splitlines()[-1] == (
            f"error: {images}/img119.png: Input/output error, as with 100 images in a row, so no "
            "plan is kept; check that the images can be read, then run the same command again"
        )
        assert not list((tmp_path / "out").rglob("*.json*"))
    for path in failing.iterdir():
        path.unlink()
    again = sick(failing, "build", images, *flags)
    assert again.returncode == 0, again.stderr
    assert "\nwritten_samples: 130\nalready_there: 0\nleft_out: 0" in again.stdout


def test_many_unreadable_texts_in_a_row_are_not_kept_unless_the_captions_are_given(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 110, ((24, 16),))
    captions = tmp_path / "captions.csv"
    lines = [f"{path.name},a caption" for path in sorted(images.glob("*.png"))]
    captions.write_text("\n".join(["file_name,caption", *lines]))
    for path in images.glob("*.txt"):
        path.unlink()
        path.symlink_to("/proc/self/mem")
    with pytest.raises(TooManyFailuresError, match="as with 100 images in a row, so no plan"):
        build(images, tmp_path / "out")
    assert build(images, tmp_path / "out", captions=captions).written_samples == 110
