"""Builds that faults are tried on: few and tiny images, so that there are few calls of the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.storage.files import using
from tests.derive.pictures import gradient, make_images, save
from tests.faults import Killed, KillingDisk, WatchedDisk

SIZES = ((16, 16), (32, 16))
Options = dict[str, Any]
Command = Callable[..., object]

_RECIPE = """
extends = "prx"
components = [{components}]
[images]
buckets = ["16x16", "32x16", "16x32"]
[component.t5]
tokens = 9
"""


def make_recipe(folder: Path, *components: str) -> Path:
    """Write a recipe of small buckets and few components."""
    path, listed = folder / "small.toml", ", ".join(f'"{name}"' for name in components)
    text = _RECIPE.format(components=listed)
    path.write_text(text if "t5" in components else text.partition("[component")[0])
    return path


def break_off(path: Path) -> None:
    """Cut an image in the middle: it is planned, and fails when it is read."""
    path.write_bytes(path.read_bytes()[:-40])


def build(images: Path, output: Path, recipe: Path, **options: Any) -> None:  # noqa: ANN401
    """Build on one device."""
    defaults = {"encoders": "sketch", "device": "cpu", "shard_size": 1, "batch_size": 2}
    shardwright.build(images, output_dir=output, recipe=recipe, **{**defaults, **options})


def _command(folder: Path, output: Path, *components: str) -> Command:
    return partial(build, folder / "images", output, make_recipe(folder, *components))


def fresh(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Build three shards; the task before the first one makes none, so that numbers change."""
    images = make_images(folder / "images", 5, SIZES)
    break_off(images / "img000.png")
    (images / "img003.png").write_bytes(b"broken")
    return _command(folder, output, "dinov3", "t5"), {"sha256": True}, {"sha256": True}


def append(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Add shards to one bucket that has some, and to one that has none."""
    images = make_images(folder / "images", 2, SIZES[:1])
    command = _command(folder, output, "dinov3")
    with using(WatchedDisk()):
        command(shard_size=2)
    make_images(images, 4, SIZES[:1])  # the first two stay as they are
    break_off(images / "img002.png")
    save(images / "new.png", gradient(32, 16))
    (images / "new.txt").write_text("in a new bucket")
    options = {"append": True}
    return command, options, options


def overwrite(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Replace shards by fewer, some of the same names, while a bucket and captions are gone."""
    images = make_images(folder / "images", 4, (*SIZES, (16, 32), SIZES[0]))
    with using(WatchedDisk()):
        _command(folder, output, "dinov3", "t5")(sha256=True)
    (images / "img002.png").unlink()
    break_off(images / "img000.png")
    save(images / "img003.png", gradient(16, 16, seed=99))
    options = {"overwrite": True}
    return _command(folder, output, "dinov3"), options, options


def overwrite_by_the_same(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Build again what is there already."""
    make_images(folder / "images", 2, SIZES)
    command = _command(folder, output, "dinov3")
    with using(WatchedDisk()):
        command()
    return command, {"overwrite": True}, {"overwrite": True}


def overwrite_interrupted(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Start over in another way, where a build was killed after it had published a shard."""
    make_images(folder / "images", 3, SIZES[:1])
    command = _command(folder, output, "dinov3")
    with using(disk := WatchedDisk()):
        command()
    published = [call.path for call in disk.calls].index(f"{output}/bucket_16x16/shard-000001.tar")
    shutil.rmtree(output)
    with using(KillingDisk(published + 1)), pytest.raises(Killed):
        command()
    options = {"overwrite": True, "shard_size": 2}
    return command, options, options


def split(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Build two parts."""
    make_images(folder / "images", 3, SIZES[:1])
    options = {"split": "val=40%", "shard_size": 2}
    return _command(folder, output, "dinov3", "t5"), options, options


def append_to_parts(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Add shards to both parts of a split."""
    images = make_images(folder / "images", 4, SIZES[:1])
    command, options = _command(folder, output, "dinov3"), {"split": "val=40%", "shard_size": 2}
    with using(WatchedDisk()):
        command(**options)
    for number in range(4, 8):
        save(images / f"img{number:03}.png", gradient(16, 16, seed=number))
        (images / f"img{number:03}.txt").write_text(f"number {number}")
    options = {"append": True, "shard_size": 1}
    return command, options, options
