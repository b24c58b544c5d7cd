"""Thousands of flipped bits over a small shard folder: every one is found, and in its place."""

from __future__ import annotations

import os
import random
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardwright
from shardwright import DamageError, pack
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import index, manifest, records
from shardwright.storage.local import LocalPlace
from shardwright.verifying.shard import Checker, Seen, ShardToCheck
from tests.durability.scenarios import small_store
from tests.durability.soak import Tally, times
from tests.stores import record

SHARD = "bucket_24x16/shard-000000.tar"
IN_SHARD = 2500
IN_DOCUMENTS = 2000
ALL = 100


@pytest.fixture
def shard_folder(folder: Path) -> Path:
    """Two samples in one shard."""
    store = small_store(folder / "derived", [record("one", "24x16"), record("two", "24x16")])
    pack(derived_dir=store.root, output_dir=folder / "shards", workers=1)
    return folder / "shards"


class Flipped:
    """A file whose bits can be flipped and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = path.read_bytes()

    def flip(self, position: int, bit: int) -> None:
        self._put(position, self.whole[position] ^ 1 << bit)

    def mend(self, position: int) -> None:
        self._put(position, self.whole[position])

    def _put(self, position: int, byte: int) -> None:
        fd = os.open(self.path, os.O_WRONLY)
        os.pwrite(fd, bytes([byte]), position)
        os.close(fd)


def regions(path: Path) -> list[tuple[int, str, str | None, str | None]]:
    """Lay out a shard by tarfile: where each part begins, what it is, and of which member."""
    found: list[tuple[int, str, str | None, str | None]] = []
    with tarfile.open(path) as tar:
        for info in tar:
            key, suffix = info.name.split(".", 1)
            found.append((info.offset, "header_differs", key, suffix))
            found.append((info.offset_data, "data_differs", key, suffix))
            if info.size % 512:
                found.append((info.offset_data + info.size, "padding_differs", key, suffix))
            end = info.offset_data + -(-info.size // 512) * 512
    return [*found, (end, "end_differs", None, None)]


def spread(parts: list[tuple[int, str, str | None, str | None]], size: int) -> Iterator[int]:
    """Choose positions: the same number in each part, however small, and at its borders."""
    draw = random.Random(0)
    each = times(IN_SHARD) // len(parts)
    ends = [*(part[0] for part in parts[1:]), size]
    for (start, *_), end in zip(parts, ends, strict=True):
        yield start
        yield end - 1
        yield from (draw.randrange(start, end) for _ in range(each))


def test_every_flip_in_a_shard_is_found_and_placed(shard_folder: Path, tally: Tally) -> None:
    listed = manifest.load_manifest(shard_folder)
    assert listed is not None
    task = ShardToCheck(SHARD, listed.shards[0], "")
    checker = Checker(LocalPlace(shard_folder), SPECIFICATION, True)
    parts = regions(shard_folder / SHARD)
    starts = [part[0] for part in parts]
    file = Flipped(shard_folder / SHARD)
    flips = 0
    for position in spread(parts, len(file.whole)):
        file.flip(position, flips % 8)
        *_, seen = checker.check(task)
        file.mend(position)
        flips += 1
        assert isinstance(seen, Seen)
        _, *place = parts[bisect_right(starts, position) - 1]
        found = [[finding.kind, finding.sample, finding.member] for finding in seen.findings]
        assert found == [["differs", None, None], place], position
    assert flips >= IN_SHARD
    tally(flips=flips)
    *_, seen = checker.check(task)
    assert isinstance(seen, Seen)
    assert seen.findings == []


def test_every_flip_in_the_manifest_the_index_and_the_records_is_found(
    shard_folder: Path, tally: Tally
) -> None:
    listed = index.load(shard_folder, SHARD).head.records_xxh3 or ""
    state = shard_folder / ".shardwright"
    draw = random.Random(0)
    flips = 0
    loads: dict[str, Callable[[], object]] = {
        "manifest.json": lambda: manifest.load_manifest(shard_folder),
        "index/bucket_24x16/shard-000000.idx": lambda: index.load(shard_folder, SHARD),
        "index/bucket_24x16/shard-000000.jsonl": lambda: records.load(shard_folder, SHARD, listed),
    }
    for name, load in loads.items():
        file = Flipped(state / name)
        places = [(position, bit) for position in range(len(file.whole)) for bit in range(8)]
        for position, bit in draw.sample(places, min(len(places), IN_DOCUMENTS)):
            file.flip(position, bit)
            with pytest.raises(DamageError):
                load()
            file.mend(position)
            flips += 1
    assert flips >= IN_DOCUMENTS
    tally(flips=flips)


def test_verify_misses_no_flip_anywhere(shard_folder: Path, tally: Tally) -> None:
    store = shard_folder.parent / "derived"
    pack(derived_dir=store, output_dir=shard_folder, workers=1, sha256=True, overwrite=True)
    draw = random.Random(1)
    paths = [
        shard_folder / SHARD,
        shard_folder / ".shardwright/manifest.json",
        shard_folder / ".shardwright/SHA256SUMS",
        shard_folder / ".shardwright/index/bucket_24x16/shard-000000.idx",
        shard_folder / ".shardwright/index/bucket_24x16/shard-000000.jsonl",
    ]
    files = [Flipped(path) for path in paths]
    tally(flips=times(ALL))
    for number in range(times(ALL)):
        file = files[number % len(files)]
        position = draw.randrange(len(file.whole))
        file.flip(position, draw.randrange(8))
        assert shardwright.verify(shard_folder, read_data=True, workers=1).damaged, file.path
        file.mend(position)
    assert not shardwright.verify(shard_folder, read_data=True, workers=1).damaged
