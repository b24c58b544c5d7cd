"""The third step of packing: lay out the shards.

Everything about the output is decided here, down to the byte, before anything is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import xxhash

from shardwright.buckets import Bucket
from shardwright.interrupts import check
from shardwright.packing.check import Checked
from shardwright.packing.scan import Scan
from shardwright.recipes import SPECIFICATION
from shardwright.recipes.compare import differences
from shardwright.shards.format import tar
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.names import bucket_folder, shard_name
from shardwright.shards.format.record_members import mask_bytes


@dataclass(frozen=True)
class Shard:
    """One tar file to be written."""

    bucket: str
    number: int
    samples: array[int]
    bytes: int

    @property
    def path(self) -> str:
        """Give its path below the output folder."""
        return f"{bucket_folder(self.bucket)}/{shard_name(self.number)}"


class Again(NamedTuple):
    """A packed shard that is written again, without the samples that do not stay."""

    bucket: str
    number: int
    samples: array[int]
    before: str  # its path, which may have another number


@dataclass(frozen=True)
class Plan:
    """All shards to be written."""

    scan: Scan
    settings: PackSettings
    shards: list[Shard]
    checked: Checked

    @property
    def buckets(self) -> list[str]:
        """Name the buckets that get shards."""
        return list(dict.fromkeys(shard.bucket for shard in self.shards))

    @property
    def bytes(self) -> int:
        """Count the bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """Sum up the settings and every sample with its record and sizes, in order."""
        hasher = xxhash.xxh3_128(msgspec.json.encode(self.settings))
        recipe = self.scan.store.recipe
        # The fit is in the provenance, and earlier versions kept it only there.
        if differences(SPECIFICATION, replace(recipe, fit=SPECIFICATION.fit)):
            hasher.update(msgspec.json.encode(recipe))
        for shard in self.shards:
            check()
            hasher.update(f"{shard.path}\0".encode())
            for sample in shard.samples:
                line = self.checked.line_hashes[sample].to_bytes(8, "little")
                name = self.scan.ids[sample].encode()
                hasher.update(name + b"\0" + line + self.checked.sizes(sample).tobytes())
        return hasher.hexdigest()


def plan(
    scan: Scan,
    checked: Checked,
    chosen: Iterable[int],
    settings: PackSettings,
    first_numbers: Mapping[str, int],
    again: Sequence[Again] = (),
) -> Plan:
    """Group the chosen samples by bucket and cut them into shards.

    ``first_numbers`` are the numbers of the first new shard of buckets, where it is not 0. Shards
    that are written ``again`` come before the new ones.
    """
    grouped: dict[str, array[int]] = {}
    for sample in chosen:
        grouped.setdefault(scan.buckets[sample], array("Q")).append(sample)
    groups = [(bucket, number, samples) for bucket, number, samples, _ in again]
    for bucket, samples in grouped.items():
        starts = range(0, len(samples), settings.shard_size)
        for number, first in enumerate(starts, first_numbers.get(bucket, 0)):
            groups.append((bucket, number, samples[first : first + settings.shard_size]))
    masks = sum(tar.member_bytes(mask_bytes(mask)) for mask in scan.store.recipe.masks)
    shards = []
    for bucket, number, part in sorted(
        groups, key=lambda group: (Bucket.parse(group[0]), group[1])
    ):
        check()
        members = [checked.json_sizes[sample] for sample in part]
        for sample in part:
            members += checked.sizes(sample)
        total = sum(map(tar.member_bytes, members)) + len(part) * masks + len(tar.END)
        shards.append(Shard(bucket, number, part, total))
    return Plan(scan, settings, shards, checked)
