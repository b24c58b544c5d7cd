"""The samples of a task, from what they are made of to what goes into the shard.

The tasks of a build differ only in where their samples come from. Those of images are made. Those
of ``build --from`` take most members from a shard as they are, and every one is compared with its
checksum in the index, so that damage is not copied: a sample with a damaged member is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardwright.buckets import Bucket
from shardwright.building import inputs
from shardwright.building.built import Built
from shardwright.building.rows import parse
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.images import BadImageError, Size, recorded_size
from shardwright.deriving.prepare import Sample, require_kept
from shardwright.deriving.recipe import view_of
from shardwright.deriving.recorded import recorded_text
from shardwright.deriving.results import Results, with_tokens
from shardwright.deriving.sources import Source
from shardwright.deriving.workers import DIED
from shardwright.errors import DamageError
from shardwright.packing.scan import changed
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX, Component, Recipe
from shardwright.shards.format import index, records, tar
from shardwright.shards.format.keys import key
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.record_members import mask_bytes
from shardwright.storage import extents
from shardwright.storage.pieces import COPY
from shardwright.store.facts import Facts, ImageFile, image_file
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import BadRecordError, Record, ordered
from shardwright.store.records import parse as parse_record

_COMPRESSED = 8  # times smaller than its pixels is a picture, or more
_DAMAGED = "damaged"  # the reason of a sample of which a member is not as it was written

SettingsOf = Mapping[str, Mapping[str, Any]]  # by component


@dataclass(kw_only=True)
class FromImage(Sample):
    """A sample that is made of an image and its texts."""

    row: inputs.Row

    def settle(self, results: Results) -> None:
        """Check what was made, and that it was made from what was planned."""
        if not _died(self) and (why := inputs.changed(self.row)):
            self.failure = why
        elif self.failure is None and self.size != (self.row.width, self.row.height):
            self.failure = (extents.CHANGED, "its size is not the one that was planned")
        results.check(self)

    def described(self, results: Results) -> tuple[Record, Facts]:
        """Give its record, and what is known of it."""
        record, known, made = results.record(self), Facts(self.source.image_id), self.made or {}
        assert record is not None
        if any(component.source == "image" for component in made):
            known = results.seen(self, known, made)
        return record, with_tokens(self, known) if self.tokens_lost else known

    def built(self) -> Built | None:
        """Give the image that it was made of, if it can be read."""
        row, file = self.row, self.image
        with suppress(OSError):  # then it is not on record
            file = file or image_file(self.source.place)  # which no component was made of
        if file is None:
            return None
        return Built(row.image_id, row.path, *row.state, file.bytes, file.xxh3)


def _died(sample: Sample) -> bool:
    """Whether a worker has died at a sample."""
    return sample.failure is not None and sample.failure[0] == DIED


@dataclass(frozen=True)
class Images:
    """Images, by their lines in the plan, which a worker elsewhere has no file of."""

    recipe: Recipe
    lines: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.lines)

    def samples(self) -> Iterator[FromImage]:
        """Give the samples, to be made."""
        recipe = self.recipe
        for line in self.lines:
            row, texts, columns = parse(line, recipe)
            source, make, text = inputs.source_of(row), recipe.components, bool(recipe.captions)
            sample = FromImage(source, make, None, None, [], text, texts, columns, row=row)
            sample.size = Size(row.width, row.height)  # so that nobody has to look again
            yield sample

    def nbytes(self, settings: SettingsOf) -> int:
        """Estimate the bytes of their members in a tar."""
        return sum(self._nbytes(line, settings) for line in self.lines)

    def _nbytes(self, line: bytes, settings: SettingsOf) -> int:
        recipe = self.recipe
        row = parse(line, recipe).row
        members = [len(line)]
        for component in recipe.components:
            found = Size(row.width, row.height)
            if component.follows_picture:
                view = view_of(component, recipe, dict(settings[component.name]))
                try:
                    found = view.frame(found).size
                except BadImageError:  # left out at work
                    continue
            members += member_bytes(component, found)
        return sum(map(tar.member_bytes, members))


def member_bytes(component: Component, size: Size) -> Iterator[int]:
    """Estimate the bytes of a component's members, for what it shows of a picture."""
    nbytes = component.nbytes(component.shape_for(*size)) + HEADER_BYTES
    if not component.is_array and component.extension != ".png":
        nbytes //= _COMPRESSED
    yield nbytes
    if component.mask is not None:
        yield mask_bytes(component.mask)


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
        """Give the samples, of which some members are to be made."""
        found = Opened(self.folder, self.entry, self.copying.before)
        lines = records.load(self.folder, self.entry.path, self.entry.records_xxh3 or "")
        known = [facts for _, facts in lines]
        if len(known) != self.entry.samples:
            what = f"has {quantity(len(known), 'records')} of {self.entry.samples:,}"
            raise DamageError(
                what, path=self.folder / records.records_name(self.entry.path), fix=COPY
            )
        for number in self.numbers:
            yield self._sample(found, number, known[number])

    def _sample(self, found: Opened, number: int, known: records.SampleFacts) -> Copied:
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
            record = sample.record = parse_record(found.read(number, JSON_SUFFIX))
        except (DamagedError, BadRecordError) as error:
            fault = error if isinstance(error, DamagedError) else _damaged(JSON_SUFFIX, error)
            sample.failure, sample.make = fault.args[:2], ()
            return sample
        part = found.part(number, copying.picture.suffix) if copying.picture else None
        sample.source = Source(image_id, str(record.get("image_path") or ""), False, part=part)
        for name in texts_of(copying.make):
            sample.texts[name] = recorded_text(record, name)
            if sample.texts[name] is None:
                sample.failure = ("no_caption", f"its record has no {name}")
        return sample

    def nbytes(self, settings: SettingsOf) -> int:
        """Estimate the bytes of their members in a tar."""
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
    """A member that is not as it was written, or cannot be read; the reason's name and a detail."""


def _damaged(suffix: str, what: object) -> DamagedError:
    return DamagedError(_DAMAGED, f"{suffix}: {what}")


class Opened:
    """A shard that members are read from, with its index."""

    def __init__(self, folder: Path, entry: ShardEntry, recipe: Recipe) -> None:
        self._path, self._recipe = folder / entry.path, recipe
        self.index = _index(folder, entry, recipe)
        self._stamp = self._now()
        if self._stamp[0] != entry.bytes:
            raise changed(self._path, "another size")

    def part(self, number: int, suffix: str) -> extents.Part:
        """Say where a member is."""
        head = self.index.head
        member = self.index.member(number, head.members.index(suffix))
        name = f"{key(head.ids[number], head.longest_key)}.{suffix}"
        return extents.Part(str(self._path), member.offset, member.size, name)

    def read(self, number: int, suffix: str) -> bytes:
        """Read a member; raise DamagedError if it is not the one that the index names."""
        data, fault = b"", _damaged(suffix, "its bytes have changed since they were written")
        try:
            data = extents.read(self.part(number, suffix))
        except extents.CutOffError as error:
            fault = _damaged(suffix, error.strerror)
        except OSError as error:
            fault = DamagedError(extents.UNREADABLE, f"{suffix}: {error.strerror or error}")
        member = self.index.member(number, self.index.head.members.index(suffix))
        if len(data) == member.size and xxhash.xxh3_64_intdigest(data) == member.xxh3:
            return data
        if self._now() != self._stamp:  # then it is not damage, and no sample is as was planned
            raise changed(self._path, "written to")
        raise fault

    def _now(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            raise changed(self._path, "it is gone") from None
        return found.st_size, found.st_mtime_ns, found.st_ino


def _index(folder: Path, entry: ShardEntry, recipe: Recipe) -> index.ShardIndex:
    found = index.load_listed(folder, entry)
    if found.head.members != recipe.suffixes:
        path = folder / index.index_name(entry.path)
        raise DamageError("is damaged, or not the one in the manifest", path=path, fix=COPY)
    return found


@dataclass(kw_only=True)
class Copied(Sample):
    """A sample of a shard, of which some components are made again."""

    shard: Opened
    number: int
    copying: Copying
    known: records.SampleFacts
    kept_masks: dict[str, list[int]] = field(default_factory=dict)  # by the field of the record

    def settle(self, results: Results) -> None:
        """Read the members that are copied, and check all of them."""
        copies: dict[Component, bytes] = {}
        if not _died(self) and self.record:
            try:
                copies = self._read()
                self._require_usable()
            except DamagedError as error:
                self.failure = error.args[:2]
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
            self.shard.read(self.number, picture.suffix)
        for component in self.copying.kept:
            found[component] = self.shard.read(self.number, component.suffix)
            if component.mask is not None:
                data = self.shard.read(self.number, component.mask.suffix)
                self.kept_masks[component.mask.field] = list(data[-component.mask.length :])
        return found

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
            raise _damaged(self.copying.picture.suffix, f"is {width}x{height} pixels")

    def described(self, results: Results) -> tuple[Record, Facts]:
        """Give its record, and what is known of it."""
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


Inputs = Images | FromShard  # what the samples of a task are made of; small, and picklable
Planned = FromImage | Copied  # a sample of a task
