"""The commands that faults are tried on: where each starts, and how one goes on after a fault."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import shardwright
from shardwright import Progress, pack
from shardwright.storage.files import using
from tests import stage1
from tests.derive.pictures import gradient, make_images, save, sketch
from tests.durability import builds
from tests.durability.folders import Contents, restore
from tests.faults import Killed, KillingDisk, WatchedDisk, contents
from tests.stores import Record, Store, array, line, make_store, npy, record

BUCKETS = ("24x16", "32x16")
GONE = "16x24"  # a bucket that had samples once
TINY = ((24, 16), (16, 24), (16, 16))  # pictures
Options = dict[str, Any]
Command = Callable[..., object]
Build = Callable[[Path, Path], tuple[Command, Options, Options]]


@dataclass(frozen=True)
class Scenario:
    """A command on a folder, the command that follows a fault, and what must come of it."""

    command: Command
    output: Path
    start: Contents | None  # what the folder holds before; None where it is not there
    first: Options
    again: Options
    expected: Contents  # what an unbroken run makes of it
    calls: int  # of the disk, in an unbroken run

    def reset(self) -> None:
        """Make the folder as it was before."""
        shutil.rmtree(self.output, ignore_errors=True)
        if self.start is not None:
            restore(self.output, self.start)

    def run(self, options: Options, progress: Progress | None = None) -> None:
        """Run one command."""
        self.command(progress=progress, **options)


def twenty(count: int = 20) -> list[Record]:
    """Make the records of twenty samples in two buckets that take turns."""
    return [record(f"img{number:02}", BUCKETS[number % 2]) for number in range(count)]


def small_store(root: Path, records: list[Record]) -> Store:
    """Make a store whose latents have the shapes of their tiny buckets, with facts."""
    empty = root / ".shardwright/empty"  # the empty caption, which is packed too
    empty.mkdir(parents=True, exist_ok=True)
    (empty / "t5h.npy").write_bytes(npy(array("t5", "")))
    (empty / "t5m.npy").write_bytes(npy(np.array([1] + [0] * 76, np.uint8)))
    known = ({"image_id": one["image_id"], "enlarged": 1.25, "cropped": 0.5} for one in records)
    (root / ".shardwright/facts.jsonl").write_bytes(b"".join(line(one) + b"\n" for one in known))
    return make_store(root, records, latent=lambda r: (16, r["height"] // 8, r["width"] // 8))


def scenario(name: str, folder: Path) -> Scenario:
    """Set up one of ``NAMES``."""
    output = folder / "output"
    command, first, again = _BUILD[name](folder, output)
    start = contents(output) if output.exists() else None
    with using(disk := WatchedDisk()):
        command(**first)
    return Scenario(command, output, start, first, again, contents(output), len(disk.calls))


def _pack(store: Store, output: Path) -> tuple[Options, Options]:
    options = {"shard_size": 6, "sha256": True}
    return options, {**options, "resume": True}


def _pack_one_large_shard(store: Store, output: Path) -> tuple[Options, Options]:
    """Write more than a buffer holds, so that it is written in parts and past the cache."""
    thirty = [record(f"img{number:02}", BUCKETS[0]) for number in range(30)]
    small_store(store.root, thirty)
    options: Options = {"shard_size": 30}
    return options, {**options, "resume": True}


def _append(store: Store, output: Path) -> tuple[Options, Options]:
    lines = store.jsonl.read_bytes().splitlines(keepends=True)
    store.jsonl.write_bytes(b"".join(lines[:11]))
    _quietly(store, output, shard_size=4)
    store.jsonl.write_bytes(b"".join(lines))
    options = {"append": True, "shard_size": 4, "shuffle": True}
    return options, options


def _overwrite(store: Store, output: Path) -> tuple[Options, Options]:
    """Replace the shards by fewer, while the samples of one bucket have gone."""
    lines = store.jsonl.read_bytes()
    small_store(store.root, [*twenty(), record("gone", GONE)])
    _quietly(store, output, shard_size=4, sha256=True)
    store.jsonl.write_bytes(lines)
    options = {"overwrite": True, "shard_size": 6}
    return options, options


def _overwrite_one_bucket(store: Store, output: Path) -> tuple[Options, Options]:
    _quietly(store, output, shard_size=4)
    options = {"overwrite": True, "shard_size": 6, "bucket": [BUCKETS[1]]}
    return options, options


def _sync(store: Store, output: Path) -> tuple[Options, Options]:
    """Empty a shard and a bucket, change a caption, and add a sample in a new bucket."""
    small_store(store.root, [*twenty(5), record("gone", GONE)])
    _quietly(store, output, shard_size=2, sha256=True)
    changed = record("img01", BUCKETS[1], caption="A picture of img01")
    small_store(store.root, [changed, *twenty(5)[3:], record("new", "16x16")])
    return {"sync": True}, {"sync": True}


def _resume(store: Store, output: Path) -> tuple[Options, Options]:
    """Go on with a run that was killed after its first two shards."""
    options = {"shard_size": 4}
    _killed_at(store, output, 45, options)
    options["resume"] = True
    return options, options


def _resume_overwrite(store: Store, output: Path) -> tuple[Options, Options]:
    """Go on with a run that was killed while it gave the new shards their names."""
    _quietly(store, output, shard_size=4)
    options: Options = {"shard_size": 6}
    with using(disk := WatchedDisk()):
        held = contents(output)
        pack(derived_dir=store.root, output_dir=output, workers=1, overwrite=True, **options)
    withdrawn = next(
        number for number, call in enumerate(disk.calls, 1) if call.path.endswith("manifest.json")
    )
    shutil.rmtree(output)
    restore(output, held)
    _killed_at(store, output, withdrawn + 4, {**options, "overwrite": True})
    options["resume"] = True
    return options, options


def _split(store: Store, output: Path) -> tuple[Options, Options]:
    """Pack one shard for each of two parts."""
    lines = store.jsonl.read_bytes().splitlines(keepends=True)
    store.jsonl.write_bytes(b"".join(lines[0:6:2]))
    options: Options = {"split": "val=50%"}
    return options, {**options, "resume": True}


def _packing(build: Callable[[Store, Path], tuple[Options, Options]]) -> Build:
    def built(folder: Path, output: Path) -> tuple[Command, Options, Options]:
        store = small_store(folder / "derived", twenty())
        command = partial(pack, derived_dir=store.root, output_dir=output, workers=1)
        return command, *build(store, output)

    return built


def _migrate(folder: Path, output: Path, count: int = 7) -> tuple[Command, Options, Options]:
    """Migrate lines of which most are sound, while one array is there already."""
    lines = [stage1.record(f"img{number:02}", seed=number) for number in range(count)]
    lines[4]["vae_latent"] = [[[0.5]]] * 16
    stage1.write(output, lines[1])
    command = partial(_migrate_in_small_groups, derived_dir=output, backup=False)
    with using(WatchedDisk()):
        command()
    short = stage1.record("short", dinov3_embedding=[])
    stage1.write(output, *lines[:3], "not json", *lines[3:], short)
    return command, {"backup": True}, {"backup": True}


def _migrate_in_small_groups(**options: Any) -> None:  # noqa: ANN401
    # Groups of hundreds are for speed; here several of them must fit into a few records.
    with mock.patch.object(
        importlib.import_module("shardwright.migrating.run"), "_PART_BYTES", 50_000
    ):
        shardwright.migrate(workers=1, **options)


def _derive(folder: Path, output: Path, count: int = 4) -> tuple[Command, Options, Options]:
    """Derive images in groups of two; one of them is broken."""
    images = make_images(folder / "images", count, TINY)
    (images / "img002.png").write_bytes(b"broken")
    return partial(sketch, images, output, batch_size=2), {}, {}


def _derive_more(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Derive two images into a store that has two others, and an old failure that is settled."""
    command, first, again = _derive(folder, output)
    hidden = (folder / "images/img001.png").rename(folder / "hidden")
    (folder / "images/img003.png").rename(folder / "img003.png")
    with using(WatchedDisk()):
        command()
    (folder / "img003.png").rename(folder / "images/img003.png")
    shutil.copy(hidden, folder / "images/img002.png")
    hidden.rename(folder / "images/img001.png")
    return command, first, again


def _recompute(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Recompute two components, of images fitted to buckets, with another caption."""
    images = make_images(folder / "images", 3, TINY)
    captions = folder / "captions.csv"
    captions.write_text("file_name,text\nimg001.png,quite another caption\n")
    small = folder / "small.toml"  # buckets
    small.write_text('extends = "prx"\nimages.buckets = ["16x16", "16x32", "32x16"]\n')
    with using(WatchedDisk()):
        sketch(images, output, fit="bucket", recipe=small)
    options = {"recompute": ["vae", "t5"], "captions": captions}
    return partial(sketch, images, output, batch_size=3), options, options


def _update(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Update an image, while the other one is gone."""
    images = make_images(folder / "images", 2, TINY)
    with using(WatchedDisk()):
        sketch(images, output)
    save(images / "img000.png", gradient(32, 16, seed=9))
    (images / "img001.png").unlink()
    options = {"update": True, "prune": True}
    return partial(sketch, images, output), options, options


def _exchange_ids(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Rename images to ids of which one is in use."""
    images = folder / "images"
    for number, name in enumerate(("a.png", "a.png.png")):
        save(images / name, gradient(16, 16, seed=number))
        (images / name).with_suffix(".txt").write_text(f"number {number}")
    with using(WatchedDisk()):
        sketch(images, output)
    options = {"ids": "path", "update": True}
    return partial(sketch, images, output), options, options


_RECIPE = """
extends = "prx"
components = ["dinov3", "t5", "picture"]
[component.t5]
tokens = {tokens}
trim = true
[component.picture]
encoder = "picture"
format = "webp"
"""


def _derive_by_a_recipe(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Derive trimmed text and pictures, by a recipe that is recorded first."""
    images, recipe = make_images(folder / "images", 2, TINY), folder / "mine.toml"
    recipe.write_text(_RECIPE.format(tokens=9))
    return partial(sketch, images, output, recipe=recipe, batch_size=2), {}, {}


def _change_the_recipe(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Recompute a text with more tokens, so that the store gets another recipe at the swap."""
    command, _, _ = _derive_by_a_recipe(folder, output)
    with using(WatchedDisk()):
        command()
    (folder / "mine.toml").write_text(_RECIPE.format(tokens=12))
    options = {"recompute": ["t5"]}
    return command, options, options


def _after_a_kill(build: Build, call: str, more: int) -> Build:
    """Go on with a run that was killed so many calls after, or before, its first one of a kind."""

    def built(folder: Path, output: Path) -> tuple[Command, Options, Options]:
        command, first, again = build(folder, output)
        start = contents(output) if output.exists() else None
        with using(disk := WatchedDisk()):
            command(**first)
        shutil.rmtree(output)
        if start is not None:
            restore(output, start)
        with using(KillingDisk(disk.names.index(call) + more)), pytest.raises(Killed):
            command(**first)
        return command, again, again

    return built


def _discard(folder: Path, output: Path) -> tuple[Command, Options, Options]:
    """Discard a recompute that was killed when all its arrays were there."""
    command, _, _ = _after_a_kill(_recompute, "rmdir", -40)(folder, output)
    options = {"recompute": ["none"], "fit": "bucket"}
    return command, options, options


_PACK = {
    "pack": _pack,
    "pack one large shard": _pack_one_large_shard,
    "append": _append,
    "overwrite": _overwrite,
    "overwrite one bucket": _overwrite_one_bucket,
    "sync": _sync,
    "resume": _resume,
    "resume an overwrite": _resume_overwrite,
    "split": _split,
}
_STORE: dict[str, Build] = {
    "migrate": _migrate,
    "resume a migration": _after_a_kill(_migrate, "rename", 5),
    "derive": _derive,
    "derive more": _derive_more,
    "resume a derive": _after_a_kill(_derive, "append", 10),
    "recompute": _recompute,
    "resume a recompute": _after_a_kill(_recompute, "append", 15),
    "discard a recompute": _discard,
    "resume a swap": _after_a_kill(_recompute, "rmdir", -13),
    "update": _update,
    "exchange ids": _exchange_ids,
    "derive by a recipe": _derive_by_a_recipe,
    "change the recipe": _change_the_recipe,
    "resume the swap of a recipe": _after_a_kill(_change_the_recipe, "rmdir", -13),
}
_BUILDS: dict[str, Build] = {
    "build": builds.fresh,
    "resume a build": _after_a_kill(builds.fresh, "mkdir", 100),
    "resume the end of a build": _after_a_kill(builds.fresh, "unlink", -20),
    "append to a build": builds.append,
    "overwrite by a build": builds.overwrite,
    "overwrite by the same build": builds.overwrite_by_the_same,
    "overwrite an interrupted build": builds.overwrite_interrupted,
    "build of two parts": builds.split,
    "append to two parts": builds.append_to_parts,
}
# As many records as packing has: too slow for every day.
_LARGE: dict[str, Build] = {
    "migrate twenty": partial(_migrate, count=20),
    "derive twenty": partial(_derive, count=20),
}
_BUILD = {name: _packing(build) for name, build in _PACK.items()} | _STORE | _BUILDS | _LARGE
PACKING = tuple(_PACK)
STORING = tuple(_STORE)
BUILDING = tuple(_BUILDS)
NAMES = PACKING + STORING + BUILDING
LARGE = tuple(_LARGE)


def _quietly(store: Store, output: Path, **options: Any) -> None:  # noqa: ANN401
    with using(WatchedDisk()):
        pack(derived_dir=store.root, output_dir=output, workers=1, **options)


def _killed_at(store: Store, output: Path, call: int, options: Options) -> None:
    with using(KillingDisk(call)), pytest.raises(Killed):
        pack(derived_dir=store.root, output_dir=output, workers=1, **options)
