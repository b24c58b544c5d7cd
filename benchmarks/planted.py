"""Made-up vectors among which copies are planted, as shards that hold nothing else.

Written by the modules of the format, because a million loose files would take an hour to pack.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from benchmarks.stores import PLANTED
from shardwright.recipes import FORMAT_VERSION, JSON_SUFFIX, SPECIFICATION
from shardwright.shards.format import index, manifest, records, tar
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.manifest import Manifest, PackSettings, Run, ShardEntry
from shardwright.shards.format.names import bucket_folder, shard_name
from shardwright.shards.format.record_members import json_member
from shardwright.shards.format.writer import entry_of
from shardwright.store.npy import header_bytes

RECIPE = replace(
    SPECIFICATION, components=tuple(c for c in SPECIFICATION.components if len(c.shape) == 1)
)
SHARE = 0.01  # of the samples
SIZES = (2, 3, 5, 10, 30, 100, 300, 1000)  # of groups
COSINES = (0.951, 0.999)  # of a copy with its original
_SHARD = 10_000  # samples

Floats = NDArray[np.float32]


def write(count: int, place: Path) -> None:
    """Write shards of so many vectors, and which of them are copies of one."""
    (vector,) = RECIPE.components
    (width,) = vector.shape_for(0, 0)
    groups = _groups(count)
    (place / PLANTED).write_text(json.dumps([[_id(n) for n in group.tolist()] for group in groups]))
    blocks = enumerate(_vectors(count, width, groups))
    entries = [_write_shard(place, number, block) for number, block in blocks]
    settings = PackSettings(buckets=[], shuffle=False, seed=None, limit=None, shard_size=_SHARD)
    run = Run(
        tool="benchmarks", append=False, settings=settings, plan="", total_records=count,
        ready_records=count, skipped_incomplete=0, skipped_by_reason={}, samples=count,
        shards=len(entries),
    )  # fmt: skip
    manifest.save_manifest(place, Manifest(runs=[run], shards=entries, recipe=RECIPE))


def _id(number: int) -> str:
    return f"{number:032x}"


def _write_shard(place: Path, number: int, block: Floats) -> ShardEntry:
    """Write what pack writes for a shard: its tar, its records and its index."""
    (vector,), bucket = RECIPE.components, RECIPE.buckets[0]
    path = f"{bucket_folder(str(bucket))}/{shard_name(number)}"
    for name in (path, index.index_name(path)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
    ids = [_id(number * _SHARD + row) for row in range(len(block))]
    header = header_bytes(vector.dtype, block.shape[1:])
    table, position, whole, lines = array("Q"), 0, xxhash.xxh3_128(), bytearray()
    with (place / path).open("wb") as file:

        def put(data: bytes) -> None:
            file.write(data)
            whole.update(data)

        for image_id, row in zip(ids, block.astype(vector.dtype), strict=True):
            record = {
                "image_id": image_id,
                "image_path": f"data/approved/{image_id}.jpg",
                "caption": f"a photograph of something worth training on, {image_id}",
                "height": bucket.height,
                "width": bucket.width,
                "aspect_bucket": str(bucket),
                "format_version": FORMAT_VERSION,
            }
            lines += records.line(record, RECIPE, None)
            members = {JSON_SUFFIX: json_member(record, RECIPE), vector.suffix: header + bytes(row)}
            for suffix, data in members.items():
                put(
                    tar.header(f"{image_id}.{suffix}", len(data))
                    + data
                    + bytes(tar.padding(len(data)))
                )
                table.extend((position + tar.BLOCK, len(data), xxhash.xxh3_64_intdigest(data)))
                position += tar.member_bytes(len(data))
        put(tar.END)
    (place / records.records_name(path)).write_bytes(lines)
    head = index.Head(
        version=index.VERSION,
        shard=path,
        bytes=position + len(tar.END),
        xxh3=whole.hexdigest(),
        records_xxh3=xxhash.xxh3_64_hexdigest(lines),
        members=RECIPE.suffixes,
        longest_key=RECIPE.longest_key,
        ids=ids,
    )
    data = index.encode(ShardIndex(head, table))
    (place / index.index_name(path)).write_bytes(data)
    return entry_of(head, data)


def _groups(count: int) -> list[NDArray[np.int64]]:
    """Choose who is a copy of whom: groups of every size that fits, again and again."""
    left, sizes = round(count * SHARE), list[int]()
    while fitting := [size for size in SIZES if size <= left]:
        for size in fitting:
            if size <= left:
                sizes.append(size)
                left -= size
    chosen = np.random.default_rng(1).permutation(count)[: sum(sizes)]
    return np.split(chosen, np.cumsum(sizes)[:-1])


def _vectors(count: int, width: int, groups: list[NDArray[np.int64]]) -> Iterator[Floats]:
    """Make vectors whose components are the narrower the later, as those of real models."""
    random = np.random.default_rng(2)
    scale = np.arange(1, width + 1, dtype=np.float32) ** -0.5
    places = np.concatenate(groups)
    planted = random.standard_normal((len(places), width), np.float32) * scale
    start = 0
    for group in groups:
        copies = planted[start : start + len(group)]
        original = copies[0] / np.linalg.norm(copies[0])
        noise = copies - (copies @ original)[:, None] * original
        noise /= np.maximum(np.linalg.norm(noise, axis=1), 1e-9)[:, None]
        cosine = random.uniform(*COSINES, len(group)).astype(np.float32)[:, None]
        cosine[0] = 1
        copies[:] = cosine * original + np.sqrt(1 - cosine**2) * noise
        start += len(group)
    for start in range(0, count, _SHARD):
        block = random.standard_normal((min(_SHARD, count - start), width), np.float32) * scale
        here = np.flatnonzero((places >= start) & (places < start + len(block)))
        block[places[here] - start] = planted[here]
        yield block
