"""The plan of a build: what was asked for, and which of the rows go into which shard."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from shardwright import regular
from shardwright.buckets import Bucket
from shardwright.building import inputs, rows
from shardwright.building.inputs import Left, Listing
from shardwright.building.remembered import Remembered
from shardwright.building.rows import INPUTS_NAME
from shardwright.building.samples import Images, Inputs
from shardwright.deriving.sources import problems
from shardwright.engine import Engine
from shardwright.interrupts import check
from shardwright.packing.choice import Choice
from shardwright.packing.scan import Ids, Scan
from shardwright.packing.select import Selected, select
from shardwright.progress import Progress
from shardwright.recipes import Recipe
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.names import bucket_folder, shard_name
from shardwright.storage import files
from shardwright.store.provenance import Entry
from shardwright.store.store import Store

PLAN_NAME = "plan.json"
_Hashed = Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)]  # a name and an xxh3


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a build was asked for, beside its inputs; another plan is refused in its folder."""

    version: Literal[1, 2] = 2
    settings: PackSettings
    recipe: Recipe
    made: dict[str, Entry]  # how each component is made
    listings: list[Listing]
    at: str = ""  # the folder that relative paths begin at
    captions: _Hashed | None = None  # the path of --captions, and its xxh3
    append: bool = False
    sha256: bool = False
    source: _Hashed | None = None  # the shards of --from, and the xxh3 of their manifests
    components: str | None = None  # that are made again of these shards
    groups: str | UnsetType = UNSET  # the xxh3 of the file that --split-by names
    remembered: list[Remembered] | UnsetType = UNSET  # captions files, for later builds
    known: int = 0  # images that are in shards already, and were not looked at
    inputs: str = ""  # the xxh3 of inputs.jsonl

    @property
    def used(self) -> dict[str, dict[str, Any]]:
        """Give the settings of each component."""
        return {name: entry.settings for name, entry in self.made.items()}

    @property
    def digest(self) -> str:
        """Name the plan: the same build is the same in every folder, except in version 1."""
        absolute = {} if self.version == 1 else {"at": "", "remembered": UNSET}
        named = msgspec.structs.replace(self, **absolute)
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(named, order="sorted"))


@dataclass(frozen=True)
class Shard:
    """One task: a shard to be made of some inputs."""

    number: int  # among all tasks
    part: str | None  # of a split
    bucket: str
    path: str  # below the folder of its part, if each task before it makes a shard
    samples: array[int]

    @property
    def digest(self) -> str:
        """Identify the task: with reserves, its number alone does not."""
        place = f"{self.part}\n{self.path}\n".encode()
        return xxhash.xxh3_64_hexdigest(place + self.samples.tobytes())


@dataclass
class Plan:
    """All inputs, and the shards that they make."""

    scan: Scan
    selected: Selected
    left: list[Left]  # inputs that cannot be used
    shards: list[Shard]
    reserves: Sequence[int]  # inputs that take the place of those that fail, in order

    @classmethod
    def empty(cls) -> Self:
        """Give a plan without inputs."""
        return cls(Scan(Store(Path(), Path()), (0, 0)), Selected([]), [], [], [])

    @property
    def inputs(self) -> int:
        """Count all inputs."""
        return len(self.scan.ids) - len(self.scan.dropped) + len(self.left)

    @property
    def samples(self) -> int:
        """Count the samples to be made, if none fails."""
        return sum(len(shard.samples) for shard in self.shards)

    def inputs_of(self, shard: Shard) -> Inputs:
        """Give what a shard is made of."""
        lines = self.scan.excerpt(shard.samples).lines()
        return Images(self.scan.store.recipe, [line for _, line in lines])


def read(
    folder: Path,
    recipe: Recipe,
    choice: Choice,
    known: Collection[str],
    first_numbers: Mapping[str | None, Mapping[str, int]],
    engine: Engine,
    progress: Progress,
) -> Plan:
    """Read the inputs, choose among them, and cut them into shards.

    ``known`` are the ids of the samples that are there, whose inputs are the same images.
    ``first_numbers`` are, for each part, the numbers of its first new shards by bucket.
    """
    path = folder / INPUTS_NAME
    with files.explained(path), regular.opened(path) as file:
        scan = Scan(Store(folder, path, recipe), files.state(file.fileno()))
    left: list[Left] = []
    hashes = array("q")
    for line, found in rows.heads(folder, progress):
        if found.left is not None:
            left.append(found.left)
        else:
            scan.add(found.image_id, found.aspect_bucket, line)
            hashes.append(hash(found.image_id))
    left += _repeated(scan, hashes, recipe)
    del hashes
    parts = list(first_numbers)
    selected = select(scan, choice, parts, known, (), engine, progress)
    limit = choice.settings.limit
    chosen = selected.order if limit is None else selected.order[:limit]
    reserves = selected.order[len(chosen) :]
    plan = Plan(scan, selected, left, [], reserves)
    add(plan, chosen, choice.settings, parts, first_numbers)
    return plan


def add(
    plan: Plan,
    chosen: Iterable[int],
    settings: PackSettings,
    parts: Sequence[str | None],
    first_numbers: Mapping[str | None, Mapping[str, int]],
) -> list[Shard]:
    """Cut samples into shards, and add them to a plan."""
    grouped: dict[tuple[int, str], array[int]] = defaultdict(lambda: array("I"))
    for sample in chosen:
        part = parts.index(plan.selected.part_of(sample))
        grouped[part, plan.scan.buckets[sample]].append(sample)
    new: list[Shard] = []
    for part, bucket in sorted(grouped, key=lambda group: (group[0], Bucket.parse(group[1]))):
        check()
        samples, name = grouped.pop((part, bucket)), parts[part]
        number = first_numbers.get(name, {}).get(bucket, 0)
        number += sum((each.part, each.bucket) == (name, bucket) for each in plan.shards)
        for at in range(0, len(samples), settings.shard_size):
            path = f"{bucket_folder(bucket)}/{shard_name(number)}"
            rows = samples[at : at + settings.shard_size]
            new.append(Shard(len(plan.shards) + len(new), name, bucket, path, rows))
            number += 1
    plan.shards += new
    return new


def _repeated(scan: Scan, hashes: array[int], recipe: Recipe) -> Iterator[Left]:
    """Drop all but one image of each id, as derive does; ``hashes`` are those of all ids."""
    shared = _shared(scan.ids, np.asarray(hashes))
    those = [rows.parse(line, recipe).row for _, line in scan.excerpt(shared).lines()]
    found = problems([inputs.source_of(row) for row in those], recipe)
    for number, (reason, detail) in sorted(found.items()):
        scan.dropped.add(shared[number])
        yield Left(those[number].image_id, those[number].path, reason, detail)


def _shared(ids: Ids, hashes: NDArray[np.int64]) -> list[int]:
    """Find the samples whose ids others have too; counting all would take more than the plan."""
    ordered = np.sort(hashes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    maybe = [int(sample) for sample in np.flatnonzero(np.isin(hashes, several))]
    counts = Counter(ids[sample] for sample in maybe)
    return [sample for sample in maybe if counts[ids[sample]] > 1]
