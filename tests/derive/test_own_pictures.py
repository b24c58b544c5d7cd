"""A store among its images: its own pictures must not become images."""

from __future__ import annotations

from pathlib import Path

from tests.commands import run
from tests.derive.pictures import make_images

RECIPE = 'extends = "prx"\n[component.picture]\nencoder = "picture"\nformat = "webp"\n'


def test_a_store_of_pictures_below_its_images_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    images, recipe = make_images(tmp_path / "images", 3), tmp_path / "mine.toml"
    recipe.write_text(RECIPE)
    flags = ("--encoders", "sketch", "--recipe", recipe)
    for folder in (images / "derived", images):
        done = run("derive", images, "--derived-dir", folder, *flags)
        assert done.returncode == 2
        assert done.stderr == (
            f"error: {folder}: is inside {images}, and the next run would derive its pictures too; "
            "give another --derived-dir\n"
        )
    assert len(list(images.iterdir())) == 6


def test_a_store_of_arrays_below_its_images_is_derived_as_before(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    for _ in range(2):
        done = run("derive", images, "--derived-dir", images / "derived", "--encoders", "sketch")
        assert (done.returncode, "images_found: 3" in done.stdout) == (0, True)
