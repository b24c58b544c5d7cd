"""Images that cannot be read are not broken: they are reported so, and tried again."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from shardwright import Progress
from shardwright.building.commits import Commits
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
        with pytest.raises(KeyboardInterrupt):
            build(images, tmp_path / "out", shard_size=2, progress=Failing(patched, "img003.png"))
    again = build(images, tmp_path / "out", shard_size=2)
    assert (again.written_samples, again.kept_shards, again.left_out) == (6, 2, {})


def raising(_: object) -> None:
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
