"""What excluded images is kept by an append, and printed; it cannot be dropped there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.building.builds import records, tars, write_recipe
from tests.commands import run
from tests.derive.pictures import make_images

pytestmark = pytest.mark.timeout(600)


def test_an_append_refuses_to_drop_conditions_and_prints_those_it_keeps(tmp_path: Path) -> None:
    images, output = make_images(tmp_path / "images", 6), tmp_path / "out"
    banned = tmp_path / "banned.txt"
    banned.write_text("img003\nimg006\n")
    flags = (images, "-o", output, "--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    conditions = ("--where", "width >= 80", "--exclude-ids-file", banned)
    done = run("build", *flags, *conditions)
    assert done.returncode == 0, done.stderr
    assert set(records(output)) == {"img000", "img002", "img005"}
    before = tars(output)
    make_images(images, 9)
    for dropped in (("--where", "none"), ("--exclude-ids-file", "none")):
        done = run("build", *flags, "--append", *dropped)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.splitlines()[-1] == (
            f"error: {output}: was built with --where 'width >= 80' --exclude-ids-file {banned}, "
            "so nothing was written; give the same conditions, or --overwrite, or another "
            "--output-dir"
        )
        assert tars(output) == before
    done = run("build", *flags, "--append")
    assert done.returncode == 0, done.stderr
    kept = f"kept from the last run: --where 'width >= 80' --exclude-ids-file {banned}\n"
    assert f"{output}: {kept}" in done.stderr
    assert set(records(output)) == {"img000", "img002", "img005", "img008"}


def test_an_append_refuses_to_drop_the_split(tmp_path: Path) -> None:
    images, output = make_images(tmp_path / "images", 9), tmp_path / "out"
    flags = (images, "-o", output, "--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    assert run("build", *flags, "--split", "val=40%").returncode == 0
    parts = {part: tars(output / part) for part in ("train", "val")}
    make_images(images, 12)
    done = run("build", *flags, "--append", "--split", "none")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"error: {output}: is split into train, val, so nothing was written; to drop the split, "
        "make all shards again with --overwrite --split none"
    )
    assert {part: tars(output / part) for part in parts} == parts
    done = run("build", *flags, "--append")
    assert f"{output}: kept from the last run: --split val=40%\n" in done.stderr
    found = [set(records(output / part)) for part in parts]
    assert set.union(*found) == {f"img{number:03}" for number in range(12)}
