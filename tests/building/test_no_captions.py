"""Images without any caption: a mistake of the command, and not of single images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.building.builds import build, write_recipe
from tests.commands import run
from tests.derive.pictures import gradient, make_images, save

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_build_without_any_caption_is_wrong_usage_and_leaves_no_plan(
    tmp_path: Path, dry: tuple[str, ...]
) -> None:
    images, output = make_images(tmp_path / "images", 3), tmp_path / "out"
    for text in images.glob("*.txt"):
        text.unlink()
    made = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch", "-o", output)
    done = run("build", images, *made, *dry)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"error: {images}/img000.png: has no caption (not in --captions, and no text with it), and "
        "no other image has one; give --captions FILE, or write name.txt beside name.jpg"
    )
    assert not [path for path in output.rglob("*") if path.is_file() and path.name != "lock"]
    (images / "img001.txt").write_text("one has a caption")
    assert run("build", images, *made, *dry).returncode == 3, "then the others failed"


def test_an_append_of_images_without_captions_adds_nothing_and_keeps_the_shards(
    tmp_path: Path,
) -> None:
    images, output = make_images(tmp_path / "images", 3), tmp_path / "out"
    build(images, output)
    save(tmp_path / "more/new.png", gradient(96, 64))
    made = ("--recipe", write_recipe(tmp_path), "-o", output, "--append")
    assert run("build", tmp_path / "more", *made).returncode == 2
    save(images / "new.png", gradient(96, 64))
    assert run("build", images, *made).returncode == 3, "others of these images are there"
