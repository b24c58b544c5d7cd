"""What a build keeps of the one before it: the way of its ids, its captions and its conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright import UsageError
from tests.building.builds import build, interrupt, tars, write_recipe
from tests.commands import run
from tests.derive.pictures import make_images

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(("before", "now"), [("name", "path"), ("path", "name")])
def test_an_append_with_ids_made_in_another_way_is_refused(
    images: Path, output: Path, tmp_path: Path, before: str, now: str
) -> None:
    build(images, output, ids=before)
    shards = tars(output)
    make_images(images, 7)
    flags = (images, "-o", output, "--recipe", write_recipe(tmp_path), "--append", "--ids", now)
    done = run("build", *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f"{output}: its image ids were made with --ids {before}, now {now}, so nothing was written;"
        f" give --ids {before}, or build all of it again with --overwrite, or give another "
        "--output-dir"
    )
    assert run("build", *flags, "--dry-run").returncode == 1
    assert tars(output) == shards
    assert build(images, output, append=True).written_samples == 1, "it goes on as before"


def test_an_interrupted_build_goes_on_only_with_ids_made_in_the_same_way(
    images: Path, output: Path
) -> None:
    interrupt(images, output, 1, shard_size=1)
    with pytest.raises(UsageError, match=r"other settings \(--ids was name and is path\)"):
        build(images, output, shard_size=1, ids="path")
