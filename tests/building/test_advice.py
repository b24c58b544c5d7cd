"""Advice to write shards again names the layout that they have, which --overwrite does not keep."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwright
from shardwright.storage.files import using
from tests.building.builds import build, write_recipe
from tests.commands import run
from tests.derive.pictures import make_images
from tests.faults import Killed, KillingDisk

pytestmark = pytest.mark.timeout(600)

LAYOUT = "--shuffle --seed 5 --shard-size 2"


def advice(folder: Path, command: str, *flags: str) -> str:
    """Run a command that is refused, and give its last line."""
    done = run(command, *flags, cwd=folder)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_images(tmp_path / "images", 9)
    write_recipe(tmp_path)
    return tmp_path


def shards(folder: Path, **options: object) -> tuple[str, ...]:
    """Build shards in a layout of their own; give the flags that add to them."""
    layout = {"shuffle": True, "seed": 5, "shard_size": 2}
    build(folder / "images", folder / "out", **layout, **options)
    return ("images", "-o", "out", "--recipe", "small.toml", "--encoders", "sketch", "--append")


def test_with_other_settings(folder: Path) -> None:
    append = shards(folder)
    assert advice(folder, "build", *append, "--fit", "bucket").endswith(
        f"; build all of it again with --overwrite {LAYOUT}, or give another --output-dir"
    )


def test_with_other_conditions(folder: Path) -> None:
    append = shards(folder, where=["width > 64"])
    assert advice(folder, "build", *append, "--where", "none").endswith(
        f"; give the same conditions, or --overwrite {LAYOUT}, or another --output-dir"
    )


def test_without_a_list_of_ids(folder: Path) -> None:
    (folder / "bad.txt").write_text("img000\n")
    append = shards(folder, exclude_ids_file=folder / "bad.txt")
    (folder / "bad.txt").unlink()
    assert advice(folder, "build", *append).endswith(
        "; restore it, or give another --exclude-ids-file, or --exclude-ids-file none (if there "
        f"are shards, with --overwrite {LAYOUT})"
    )


@pytest.mark.parametrize("command", ["build", "pack"])
def test_with_another_split_or_none(folder: Path, command: str) -> None:
    append = shards(folder, split="val=40%")
    if command == "pack":
        done = run("derive", *append[:1], *append[3:-1], "--derived-dir", "store", cwd=folder)
        assert done.returncode == 0, done.stderr
        append = ("--derived-dir", "store", "-o", "out", "--append")
    assert advice(folder, command, *append, "--split", "val=20%").endswith(
        f"; give --split val=40%, or make all shards again with --overwrite {LAYOUT} and --split"
    )
    assert advice(folder, command, *append, "--split", "none").endswith(
        f"; to drop the split, make all shards again with --overwrite --split none {LAYOUT}"
    )


def test_after_an_interrupted_pack(folder: Path) -> None:
    append = shards(folder)
    done = run("derive", *append[:1], *append[3:-1], "--derived-dir", "store", cwd=folder)
    assert done.returncode == 0, done.stderr
    pack(folder)
    assert advice(folder, "build", *append).endswith(
        f"; finish it with shardwright pack --resume {LAYOUT}, or give --overwrite {LAYOUT}"
    )


def pack(folder: Path) -> None:
    """Pack over the shards, and be killed before the end."""
    with using(KillingDisk(30)), pytest.raises(Killed):
        shardwright.pack(
            derived_dir=folder / "store",
            output_dir=folder / "out",
            overwrite=True,
            shuffle=True,
            seed=5,
            shard_size=2,
            workers=1,
        )
