"""The samples of ``build --from``: most members come from a shard, as they are; some are made.

Every member that is taken from a shard is compared with its checksum in the index, so that damage
is not copied. A sample with a damaged member is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from shardwright.buckets import Bucket
from shardwright.building.plan import Plan, Shard
from shardwright.building.samples import Inputs, Planned, SettingsOf, member_bytes
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.images import Size
from shardwright.deriving.prepare import require_kept
from shardwright.deriving.recorded import recorded_size, recorded_text
from shardwright.deriving.results import Results
from shardwright.deriving.sources import Source
from shardwright.errors import DamageError
from shardwright.packing.scan import changed
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX, Component, Recipe
from shardwright.shards.format import index, records, tar
from shardwright.shards.format.index import ShardIndex, index_name
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.records import SampleFacts, records_name
from shardwright.storage import extents
from shardwright.storage.extents import UNREADABLE, CutOffError, Part
from shardwright.storage.pieces import COPY
from shardwright.store.facts import Facts, ImageFile
from shardwright.store.records import BadRecordError, Record, ordered, parse

_DAMAGED = "damaged"  # the reason of a sample of which a member is not as it was written
_UNKNOWN = SampleFacts()


@dataclass(frozen=True)
class Copying:
    """Which components are made again, and where the others are."""

    before: Recipe  # of the shards
    recipe: Recipe  # of the new ones
    make: tuple[Component, ...]
    picture: Component | None  # of the shards: what components are made from, if one needs it

    @property
    def kept(self) -> list[Component]:
        """Give the components that are copied."""
        return [component for component in self.recipe.components if component not in self.make]


@dataclass(frozen=True)
class FromShard:
    """Samples of a shard, by their numbers in it."""

    folder: Path
    entry: ShardEntry
    copying: Copying
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def samples(self) -> Iterator[Copied]:
        found = Opened(self.folder, self.entry, self.copying.before)
        known = [_UNKNOWN] * self.entry.samples
        if self.entry.records_xxh3:  # earlier versions had no such file
            lines = records.load(self.folder, self.entry.path, self.entry.records_xxh3)
            known = [facts for _, facts in lines]
        if len(known) != self.entry.samples:
            what = f"has {quantity(len(known), 'records')} of {self.entry.samples:,}"
            raise DamageError(what, path=self.folder / records_name(self.entry.path), fix=COPY)
        for number in self.numbers:
            yield self._sample(found, number, known[number])

    def _sample(self, found: Opened, number: int, known: SampleFacts) -> Copied:
        copying, image_id = self.copying, found.index.head.ids[number]
        sample = Copied(
            Source(image_id, str(found.part(number, JSON_SUFFIX)), has_sidecar=False),
            *(copying.make, {}, None, [], bool(texts_of(copying.make)), {}, {}),
            shard=found,
            number=number,
            copying=copying,
            known=known,
        )
        try:
            record = sample.record = parse(found.read(number, JSON_SUFFIX))
        except (DamagedError, BadRecordError) as error:
            reason = error.reason if isinstance(error, DamagedError) else _DAMAGED
            sample.failure, sample.make = (reason, f"{JSON_SUFFIX}: {error}"), ()
            return sample
        path, part = record.get("image_path"), None
        if copying.picture is not None:
            part = found.part(number, copying.picture.suffix)
        sample.source = Source(image_id, str(path or ""), has_sidecar=False, part=part)
        sample.texts = {name: recorded_text(record, name) for name in texts_of(copying.make)}
        for name, text in sample.texts.items():
            if text is None:
                sample.failure = ("no_caption", f"its record has no {name}")
        return sample

    def nbytes(self, settings: SettingsOf) -> int:
        copying, head = self.copying, _index(self.folder, self.entry, self.copying.before)
        suffixes = [JSON_SUFFIX, *(name for c in copying.kept for name in c.members)]
        columns = [copying.before.suffixes.index(suffix) for suffix in suffixes]
        bucket = Bucket.parse(self.entry.bucket)
        size = Size(bucket.width, bucket.height)  # nearly, if pictures keep their own
        new = [nbytes for made in copying.make for nbytes in member_bytes(made, size)]
        kept = (head.member(number, column).size for number in self.numbers for column in columns)
        return sum(map(tar.member_bytes, kept)) + len(self) * sum(map(tar.member_bytes, new))


def texts_of(components: Sequence[Component]) -> list[str]:
    """Name the fields of a record that components are made from."""
    return list(dict.fromkeys(c.field for c in components if c.source == "caption"))


class DamagedError(ValueError):
    """A member that is not as it was written; ``args[0]`` says how."""

    reason = _DAMAGED


class UnreadError(DamagedError):
    """A member that cannot be read, which may pass by itself."""

    reason = UNREADABLE


class Opened:
    """A shard that members are read from, with its index."""

    def __init__(self, folder: Path, entry: ShardEntry, recipe: Recipe) -> None:
        self._path, self._recipe = folder / entry.path, recipe
        self.index = _index(folder, entry, recipe)
        self._stamp = self._now()
        if self._stamp is None or self._stamp[0] != entry.bytes:
            raise changed(self._path, "it is gone" if self._stamp is None else "another size")

    def part(self, number: int, suffix: str) -> Part:
        """Say where a member is."""
        head = self.index.head
        member = self.index.member(number, head.members.index(suffix))
        name = f"{key(head.ids[number], head.longest_key)}.{suffix}"
        return Part(str(self._path), member.offset, member.size, name)

    def read(self, number: int, suffix: str) -> bytes:
        """Read a member; raise DamagedError if it is not the one that the index names."""
        fault = DamagedError("its bytes have changed since they were written")
        try:
            data = extents.read(self.part(number, suffix))
        except CutOffError as error:
            data, fault = b"", DamagedError(error.strerror)
        except OSError as error:
            data, fault = b"", UnreadError(error.strerror or str(error))
        member = self.index.member(number, self.index.head.members.index(suffix))
        if len(data) == member.size and xxhash.xxh3_64_intdigest(data) == member.xxh3:
            return data
        if self._now() != self._stamp:  # then it is not damage, and no sample is as was planned
            raise changed(self._path, "written to")
        raise fault

    def _now(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino


def _index(folder: Path, entry: ShardEntry, recipe: Recipe) -> ShardIndex:
    found = index.load_listed(folder, entry)
    if found.head.members != recipe.suffixes:
        what, path = "is damaged, or not the one in the manifest", folder / index_name(entry.path)
        raise DamageError(what, path=path, fix=COPY)
    return found


@dataclass(kw_only=True)
class Copied(Planned):
    """A sample of a shard, of which some components are made again."""

    shard: Opened
    number: int
    copying: Copying
    known: SampleFacts
    kept_masks: dict[str, list[int]] = field(default_factory=dict)  # by the field of the record

    def settle(self, results: Results) -> None:
        copies: dict[Component, bytes] = {}
        if not self.died and self.record:
            try:
                copies = self._read()
                self._require_usable()
            except DamagedError as error:
                self.failure = (error.reason, str(error))
            except CaptionError as error:
                self.failure = self.failure or (error.args[0], error.args[1])
        results.check(self)
        if not self.failure:
            self.made = {**copies, **(self.made or {})}

    def _read(self) -> dict[Component, bytes]:
        """Read the members that are copied; check also the picture that others are made from."""
        found = {}
        picture = self.copying.picture
        if picture is not None and picture not in self.copying.kept:
            self._member(picture.suffix)
        for component in self.copying.kept:
            found[component] = self._member(component.suffix)
            if component.mask is not None:
                data = self._member(component.mask.suffix)
                self.kept_masks[component.mask.field] = list(data[-component.mask.length :])
        return found

    def _member(self, suffix: str) -> bytes:
        try:
            return self.shard.read(self.number, suffix)
        except DamagedError as error:
            raise type(error)(f"{suffix}: {error}") from None

    def _require_usable(self) -> None:
        """Raise if its captions lose too much, or its picture is not the one of its record."""
        recipe = self.copying.recipe
        require_kept(self.tokens_lost, recipe.selection.max_tokens_lost)
        if self.copying.picture is None or self.failure or self.size is None:
            return
        assert self.record is not None
        size = recorded_size(self.record)
        if recipe.fit == "bucket":
            bucket = Bucket.parse(self.record["aspect_bucket"])
            size = Size(bucket.width, bucket.height)
        if self.size != size:
            width, height = self.size
            raise DamagedError(f"{self.copying.picture.suffix}: is {width}x{height} pixels")

    def described(self, results: Results) -> tuple[Record, Facts]:
        record = {**(self.record or {}), **self.kept_masks, **self.masks}
        names = {component.name for component in self.copying.kept}
        lost = {name: count for name, count in self.known.tokens_lost.items() if name in names}
        cut = {name: length for name, length in self.known.cut_at.items() if name in names}
        image = None
        if self.known.image_xxh3 is not None:  # all that shards have on record of it
            image = ImageFile("", 0, 0, self.known.image_xxh3)
        known = Facts(
            self.source.image_id,
            image=image,
            tokens_lost=lost | self.tokens_lost,
            cut_at=cut | self.cut_at,
            enlarged=self.known.enlarged,
            cropped=self.known.cropped,
        )
        return ordered(record, results.recipe), known


@dataclass
class CopyPlan(Plan):
    """The shards of a folder, or of its parts, each of which becomes a shard."""

    copying: Copying
    folders: Mapping[str | None, Path]  # by part
    entries: list[ShardEntry]  # by the number of the task

    @property
    def inputs(self) -> int:
        return self.samples

    def inputs_of(self, shard: Shard) -> Inputs:
        entry = self.entries[shard.number]
        return FromShard(self.folders[shard.part], entry, self.copying, shard.samples)
