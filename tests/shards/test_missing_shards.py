"""What verify advises for shards that are missing: commands that work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.building.builds import RECIPE, build, tars, write_recipe
from tests.commands import run
from tests.derive.pictures import make_images

pytestmark = pytest.mark.timeout(600)

SIZE = ((96, 64),)
PACK = ("pack", "--derived-dir", "store", "-o", "shards", "--shard-size", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images, their store, and shards of it of two samples each."""
    write_recipe(tmp_path, RECIPE.replace("[images]", '[images]\nfit = "bucket"'))
    make_images(tmp_path / "images", 6, SIZE)
    derive(tmp_path)
    assert run(*PACK, cwd=tmp_path).returncode == 0
    return tmp_path


def derive(folder: Path) -> None:
    flags = ("--recipe", "small.toml", "--encoders", "sketch", "--derived-dir", "store")
    done = run("derive", "images", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr


def verify(folder: Path) -> str:
    return run("verify", "shards", "--against", "store", cwd=folder).stdout


def test_samples_of_a_missing_shard_are_missing_and_not_left_out(folder: Path) -> None:
    before = tars(folder / "shards")
    (folder / "shards/bucket_96x64/shard-000001.tar").unlink()
    printed = verify(folder)
    assert "missing: 1\n" in printed
    assert "restore it from a copy, or run the same pack with --resume\n" in printed
    assert "left_out" not in printed
    assert "--append" not in printed
    assert run(*PACK, "--resume", cwd=folder).returncode == 0
    assert tars(folder / "shards") == before


@pytest.mark.parametrize("restored", [True, False])
def test_records_that_wait_are_packed_by_the_command_that_the_report_gives(
    folder: Path, restored: bool
) -> None:
    before = tars(folder / "shards")
    make_images(folder / "images", 8, SIZE)
    derive(folder)
    shard = folder / "shards/bucket_96x64/shard-000001.tar"
    shard.unlink()
    printed = verify(folder)
    flags = "--derived-dir store --output-dir shards"
    assert "has 2 records without a sample in the shards, for example img006" in printed
    append, overwrite = re.findall(r"run shardwright (pack .*? --shard-size 2)", printed)
    assert (
        f"to pack those that are ready, run shardwright pack {flags} --append --shard-size 2 once "
        f"the missing shards are restored, or run shardwright pack {flags} --overwrite "
        "--shard-size 2\n"
    ) in printed
    if restored:
        shard.write_bytes(before["bucket_96x64/shard-000001.tar"])
    done = run(*(append if restored else overwrite).split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert tars(folder / "shards").items() > before.items()
    assert run("verify", "shards", "--against", "store", cwd=folder).returncode == 0


def test_a_missing_shard_of_a_build_is_built_again_as_the_report_says(
    folder: Path, tmp_path: Path
) -> None:
    images, recipe = folder / "images", folder / "small.toml"
    build(images, tmp_path / "built", shard_size=2, recipe=recipe)
    before = tars(tmp_path / "built")
    (tmp_path / "built/bucket_96x64/shard-000001.tar").unlink()
    for against in ("images", "store"):
        printed = run("verify", "built", "--against", against, cwd=tmp_path).stdout
        assert "or build again with --overwrite --shard-size 2\n" in printed
        assert "--append" not in printed
        assert "left_out" not in printed
    build(images, tmp_path / "built", shard_size=2, overwrite=True, recipe=recipe)
    assert tars(tmp_path / "built") == before
