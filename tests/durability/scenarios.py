"""The commands that faults are tried on: where each starts, and how one goes on after a fault."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright import Progress, pack
from shardwright.files import using
from tests.durability.disks import KillingDisk, WatchedDisk
from tests.durability.folders import Contents, restore
from tests.faults import Killed, contents
from tests.stores import Record, Store, make_store, record

BUCKETS = ("24x16", "32x16")
GONE = "16x24"  # a bucket that had samples once
Options = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A command on a folder, the command that follows a fault, and what must come of it."""

    store: Store
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
        pack(
            derived_dir=self.store.root,
            output_dir=self.output,
            workers=1,
            progress=progress,
            **options,
        )


def twenty(count: int = 20) -> list[Record]:
    """Make the records of twenty samples in two buckets that take turns."""
    return [record(f"img{number:02}", BUCKETS[number % 2]) for number in range(count)]


def small_store(root: Path, records: list[Record]) -> Store:
    """Make a store whose latents have the shapes of their tiny buckets."""
    return make_store(root, records, latent=lambda r: (16, r["height"] // 8, r["width"] // 8))


def scenario(name: str, folder: Path) -> Scenario:
    """Set up one of ``NAMES``."""
    build = _BUILD[name]
    store = small_store(folder / "derived", twenty())
    output = folder / "shards"
    first, again = build(store, output)
    start = contents(output) if output.exists() else None
    with using(disk := WatchedDisk()):
        pack(derived_dir=store.root, output_dir=output, workers=1, **first)
    return Scenario(store, output, start, first, again, contents(output), len(disk.calls))


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


_BUILD = {
    "pack": _pack,
    "pack one large shard": _pack_one_large_shard,
    "append": _append,
    "overwrite": _overwrite,
    "overwrite one bucket": _overwrite_one_bucket,
    "resume": _resume,
    "resume an overwrite": _resume_overwrite,
}
NAMES = tuple(_BUILD)


def _quietly(store: Store, output: Path, **options: Any) -> None:  # noqa: ANN401
    with using(WatchedDisk()):
        pack(derived_dir=store.root, output_dir=output, workers=1, **options)


def _killed_at(store: Store, output: Path, call: int, options: Options) -> None:
    try:
        with using(KillingDisk(call)):
            pack(derived_dir=store.root, output_dir=output, workers=1, **options)
    except Killed:
        return
    raise AssertionError("the run ended before it was killed")
