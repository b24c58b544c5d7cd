"""The plan of a build: all inputs with their texts and sizes; then which go into which shard.

The inputs are written down once, in ``inputs.jsonl``: a line for each, like a record of a store. So
what chooses samples for ``pack`` chooses them here too. A rerun reads that file instead of opening
all images again, and makes the same shards of it.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from shardwright import regular
from shardwright.buckets import Bucket, is_bucket
from shardwright.building import built, captioned, inputs, measuring
from shardwright.building.inputs import Found, Listing, Problem, Row
from shardwright.building.ledger import Left
from shardwright.building.measuring import Measured
from shardwright.building.remembered import Remembered
from shardwright.building.samples import INPUT, Images, Inputs, Texts, parse
from shardwright.deriving.captions import CAPTION, RESERVED, CaptionError, Captions
from shardwright.deriving.images import Size
from shardwright.deriving.outcomes import IN_A_ROW
from shardwright.deriving.sources import Source, problems, sharing
from shardwright.deriving.views import left_out
from shardwright.engine import Engine
from shardwright.errors import DamageError, TooManyFailuresError
from shardwright.interrupts import check
from shardwright.packing.choice import Choice
from shardwright.packing.scan import Ids, Scan
from shardwright.packing.select import Selected, select
from shardwright.progress import Progress, quantity
from shardwright.recipes import Recipe
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.names import bucket_folder, shard_name
from shardwright.storage import files
from shardwright.storage.local import LocalPlace
from shardwright.store import records
from shardwright.store.provenance import Entry
from shardwright.store.records import BadRecordError, Line, Record, is_image_id, own_fields
from shardwright.store.store import Store
from shardwright.summary import require_sum

INPUTS_NAME, PLAN_NAME = "inputs.jsonl", "plan.json"
_LEFT = "__left_out__"  # the field of an input that cannot be used


class _Names(msgspec.Struct, gc=False):
    """What a layout needs of a line; to read only that is several times faster."""

    image_id: str = ""
    aspect_bucket: str = ""
    left: Left | None = msgspec.field(default=None, name=_LEFT)
    where: Row | str = msgspec.field(default="", name=INPUT)  # or the file of what cannot be used


_decode = msgspec.json.Decoder(_Names).decode
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


def write(
    found: Sequence[Found],
    captions: Captions | None,
    recipe: Recipe,
    known: Mapping[str, bytes],
    folder: Path,
    engine: Engine,
    progress: Progress,
) -> int:
    """Look at all inputs, and write them down; give how many are ``known`` and not looked at.

    ``known`` are the samples that are there: by their ids, what their images were.
    """
    files.make_folder(folder)
    if recipe.ids != "name":
        found = [each._replace(images=sharing(each.images)) for each in found]
    new, there = measuring.parted(found, known, recipe.ids)
    place, length, count = LocalPlace(folder), 0, 0
    tars = {inputs.as_text(tar) for each in new for tar in each.tars}
    with place.create(INPUTS_NAME) as file:
        with closing(measuring.measured(new, recipe, engine, progress)) as measured:
            readable = _within_reach(measured, captions)
            for one in captioned.matched(readable, found, captions, folder):
                line = _line(one, captions, recipe, known) + b"\n"
                file.put(line)
                length += len(line)
                count += one.row.file not in tars
        file.seal(length)
    require_sum("images found", sum(len(each.images) for each in new), count)
    place.publish(INPUTS_NAME)
    files.sync_folder(folder)
    return sum(len(each.images) for each in there)


def _within_reach(measured: Iterable[Measured], captions: Captions | None) -> Iterator[Measured]:
    """Give what was measured; raise if many in a row could not be read.

    A plan without them would be kept, although they may only be out of reach for a while.
    """
    row = 0
    for one in measured:
        row = row + 1 if (why := _unread(one, captions)) else 0
        if why and row == IN_A_ROW:
            what = f"{why}, as with {IN_A_ROW} images in a row, so no plan is kept"
            fix = "check that the images can be read, then run the same command again"
            raise TooManyFailuresError(what, path=one.row.path, fix=fix)
        yield one


def _unread(one: Measured, captions: Captions | None) -> str | None:
    """Say why an image or its text could not be read, if it could not."""
    if isinstance(one.row, Problem):
        return one.row.detail if one.row.reason in (inputs.UNREADABLE, inputs.GONE) else None
    reason, detail = one.fault or ("", "")
    return detail if reason == "caption_unreadable" and captions is None else None


def _line(
    one: Measured, captions: Captions | None, recipe: Recipe, known: Mapping[str, bytes]
) -> bytes:
    """Write an input as a line."""
    row = one.row
    if isinstance(row, Problem):
        return _unusable(Left(row.image_id, row.path, row.reason, row.detail), row.file)
    try:
        texts, columns, given = _texts(one, inputs.source_of(row), captions, recipe)
    except CaptionError as error:
        return _unusable(Left(row.image_id, row.path, *error.args), row.file)
    image_id = row.image_id
    if recipe.ids == "captions":
        image_id = given or image_id
        if not image_id:
            what = "no image_id in --captions or in its JSON"
            return _unusable(Left("", row.path, "no_image_id", what), row.file)
        if not is_image_id(image_id):
            what = "its image_id is not a valid one"
            return _unusable(Left(image_id, row.path, "image_id_invalid", what), row.file)
        row = msgspec.structs.replace(row, image_id=image_id)
    if why := left_out(Size(row.width, row.height), recipe):
        return _unusable(Left(image_id, row.path, *why, by_recipe=True), row.file)
    if image_id in known and (why := built.other(known[image_id], row)):
        return _unusable(Left(image_id, row.path, *why), row.file)
    record: Record = {"image_id": image_id, "image_path": row.path, **texts}
    record |= {"height": row.height, "width": row.width}
    record["aspect_bucket"] = str(recipe.bucket_for(row.width, row.height))
    own = own_fields(recipe)
    record |= {n: v for n, v in columns.items() if n not in own and v is not None}
    line = records.line({**record, INPUT: msgspec.to_builtins(row)})
    if len(line) >= records.LONGEST_LINE:  # which could not be read again
        what = f"its texts and columns have {quantity(len(line), 'B')}"
        return _unusable(Left(image_id, row.path, "record_too_large", what), row.file)
    return line


def _unusable(left: Left, file: str) -> bytes:
    return records.line({_LEFT: msgspec.to_builtins(left), INPUT: file})


def rows(folder: Path) -> Iterator[Row | Problem]:
    """Read where the inputs were when they were written down."""
    path = folder / INPUTS_NAME
    for _, found in records.walk(path, _names, bad=partial(_unreadable, path)):
        yield Problem("", found.where, "", "") if isinstance(found.where, str) else found.where


def _texts(
    one: Measured, source: Source, captions: Captions | None, recipe: Recipe
) -> tuple[Texts, Record, str | None]:
    """Find the texts and the columns of an image, and the id that the captions file gives it."""
    given = captions.of(source, one.given) if captions else {}
    columns = one.columns | given
    if taken := RESERVED & columns.keys():
        what = f"its captions have a column {min(taken)}, a name that Shardwright uses"
        raise CaptionError("reserved_name", what)
    if CAPTION not in given:  # a text goes before the JSON
        if one.fault is not None:
            raise CaptionError(*one.fault)
        if one.text:
            columns[CAPTION] = one.text
    texts: Texts = {}
    for name in dict.fromkeys((CAPTION, *recipe.texts)):
        texts[name] = columns.pop(name, None)
        if texts[name] or name not in recipe.texts:
            texts[name] = texts[name] or ""
        elif name == CAPTION:
            raise CaptionError("no_caption", "not in --captions, and no text with it")
        else:
            raise CaptionError("no_caption", f"no {name} in --captions, and none with it")
    own = captions.image_id(source, one.given) if captions and recipe.ids == "captions" else None
    return texts, columns, own


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
    bad = partial(_unreadable, path)
    for line, found in records.walk(path, _names, bad=bad, progress=progress, phase="plan"):
        image_id = found.image_id
        if found.left is not None:
            left.append(found.left)
        else:
            scan.add(image_id, found.aspect_bucket, line)
            hashes.append(hash(image_id))
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


def _unreadable(path: Path, line: Line, reason: str) -> None:
    """Raise for a line that cannot be read: its input would be in no count."""
    what = f"line {line.number} is not an input of a plan"
    raise DamageError(what, path=path, fix="build again with --overwrite")


def _names(line: bytes | None) -> _Names:
    """Read what a layout needs of a line; raise BadRecordError if we cannot have written it."""
    try:
        found = _decode(line or b"")
    except records.NOT_JSON:
        raise BadRecordError("not_json") from None
    if found.left is None and not _is_input(found):
        raise BadRecordError("not_an_input")
    return found


def _is_input(found: _Names) -> bool:
    """Whether it is an image with its id and its bucket, of which paths are made."""
    row = found.where
    named = isinstance(row, Row) and row.image_id == found.image_id and "\0" not in row.path
    return named and is_image_id(found.image_id) and is_bucket(found.aspect_bucket)


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
    rows = [parse(line, recipe).row for _, line in scan.excerpt(shared).lines()]
    found = problems([inputs.source_of(row) for row in rows], recipe)
    for number, (reason, detail) in sorted(found.items()):
        scan.dropped.add(shared[number])
        yield Left(rows[number].image_id, rows[number].path, reason, detail)


def _shared(ids: Ids, hashes: NDArray[np.int64]) -> list[int]:
    """Find the samples whose ids others have too; counting all would take more than the plan."""
    ordered = np.sort(hashes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    maybe = [int(sample) for sample in np.flatnonzero(np.isin(hashes, several))]
    counts = Counter(ids[sample] for sample in maybe)
    return [sample for sample in maybe if counts[ids[sample]] > 1]


def checksum(folder: Path) -> str:
    """Give the xxh3 of the inputs; blank if they are gone."""
    hasher = xxhash.xxh3_64()
    path = folder / INPUTS_NAME
    with files.explained(path), suppress(FileNotFoundError), regular.unbuffered(path) as file:
        while data := file.read(1 << 20):
            check()
            hasher.update(data)
        return hasher.hexdigest()
    return ""
