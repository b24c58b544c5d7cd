"""The samples of a shard: where they are, and whether their members are valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardwright.buckets import Bucket, is_bucket
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX, MEMBER_FIELDS, Component, Mask, Recipe, Shape
from shardwright.shards.format import tar, tarread
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.record_members import mask_fault
from shardwright.shards.format.tarread import Fault
from shardwright.storage.local import Readable
from shardwright.store import content, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Record

_START = 1024  # bytes: enough for our array headers, a mask, and most records
OWN_SIZE = "own_size"  # reported once per shard, not per sample


class MemberData(NamedTuple):
    """The place of a member's data, and its first bytes."""

    file: Readable
    offset: int
    size: int
    start: bytes

    def read(self, count: int, at: int) -> bytes:
        """Read bytes of its data from an offset; fewer at its end."""
        count = max(0, min(count, self.size - at))
        known = at + count <= len(self.start)
        return self.start[at : at + count] if known else self.file.pread(self.offset + at, count)


Found = tuple[str, dict[str, MemberData]]  # a sample's name, and its members


def header(name: str, size: int) -> bytes:
    """Make the header that a member must have; if none is possible, one that no file has."""
    try:
        return tar.header(name, size)
    except ValueError:
        return b"\xff" * tar.BLOCK


def indexed(file: Readable, shard: ShardIndex, keys: Sequence[str]) -> Iterator[Found | Fault]:
    """Find the samples of a shard by its index, and check each header."""
    spots = shard.spots()
    for image_id, key in zip(shard.head.ids, keys, strict=True):
        places = {}
        for suffix in shard.head.members:
            offset, size = next(spots)
            data = file.pread(offset - tar.BLOCK, tar.BLOCK + min(size, _START))
            if not data.startswith(header(f"{key}.{suffix}", size)):
                yield Fault("index_wrong", "is not where the index says", suffix, image_id)
            places[suffix] = MemberData(file, offset, size, data[tar.BLOCK :])
        yield image_id, places


def walked(file: Readable, keys: list[str], recipe: Recipe) -> Iterator[Found | Fault]:
    """Find the samples of any tar as loaders see them, with faults; add their keys to the list."""
    suffixes, extended = recipe.suffixes, 0
    for sample in tarread.samples(file):
        if isinstance(sample, Fault):
            yield sample
            continue
        keys.append(sample.key)
        places = {}
        for suffix, entry in sample.members.items():
            extended += entry.extended
            true_suffix = next((s for s in suffixes if suffix.endswith(f".{s}")), None)
            if true_suffix is not None and suffix not in suffixes:
                what = f"loaders split {entry.name} at its first dot and see the field {suffix}"
                yield Fault("splits_wrongly", what, true_suffix, sample.key)
            start = file.pread(entry.offset, min(entry.size, _START))
            places[suffix] = MemberData(file, entry.offset, entry.size, start)
        yield sample.key, places
    if extended:
        what = f"{quantity(extended, 'PAX or GNU headers')}, which slow down or stop loaders"
        yield Fault("extended_headers", what, damage=False)


def check_sample(
    places: Mapping[str, MemberData], bucket: str | None, recipe: Recipe
) -> tuple[str | None, list[Fault]]:
    """Check a sample's record, array headers and masks; give its image_id and the faults."""
    missing = [suffix for suffix in recipe.suffixes if suffix not in places]
    faults = [Fault("member_missing", f"has no {', '.join(missing)}")] if missing else []
    record: Record = {}
    if JSON_SUFFIX in places:
        record, found = _record(places[JSON_SUFFIX], bucket)
        faults += found
    named = record.get("aspect_bucket")
    size = _parsed(named) if isinstance(named, str) else None
    shapes: dict[str, Shape] = {}
    for suffix, array in recipe.arrays.items():
        if place := places.get(suffix):
            try:
                _, shapes[suffix] = content.check_part(place.read, place.size, array)
            except BadArrayError as error:
                what = f"does not match the recipe ({_words(error.reason)})"
                faults.append(Fault(f"{array.name}_{error.reason}", what, suffix))
            else:
                if size and not array.fits(shapes[suffix], size.width, size.height):
                    faults.append(_other_size(shapes[suffix], array, size, record))
    for component in recipe.components:
        if component.mask is not None and component.mask.suffix in shapes:
            faults += _mask(places[component.mask.suffix], component, component.mask, shapes)
    image_id = record.get("image_id")
    return (image_id if records.is_image_id(image_id) else None), faults


def _record(place: MemberData, bucket: str | None) -> tuple[Record, list[Fault]]:
    if place.size > records.LONGEST_LINE:
        return {}, [Fault("json_too_long", f"has {place.size:,} bytes", JSON_SUFFIX)]
    try:
        record = records.parse(place.read(place.size, 0))
    except BadRecordError as error:
        return {}, [Fault(f"json_{error.reason}", f"is {_words(error.reason)}", JSON_SUFFIX)]
    faults = []
    if missing := [name for name in MEMBER_FIELDS if name not in record]:
        faults.append(Fault("field_missing", f"has no {', '.join(missing)}", JSON_SUFFIX))
    if problem := records.image_id_problem(record.get("image_id")):
        faults.append(Fault(problem, _words(problem), JSON_SUFFIX))
    named = record.get("aspect_bucket")
    if bucket is not None and named != bucket:
        faults.append(Fault("other_bucket", f"says that its bucket is {named}", JSON_SUFFIX))
    return record, faults


def _mask(
    place: MemberData, component: Component, mask: Mask, shapes: Mapping[str, Shape]
) -> Iterator[Fault]:
    values = place.read(place.size, 0)[-mask.length :]
    if values.translate(None, b"\0\1"):
        yield Fault("mask_invalid", "has values other than 0 and 1", mask.suffix)
        return
    shape = shapes.get(component.suffix)
    if component.trim and shape and (fault := mask_fault(shape, values)):
        what = f"has {quantity(shape[0], 'rows')}, but {mask.suffix} keeps {sum(values):,}"
        yield Fault(f"{component.name}_{fault}", what, component.suffix)


def _other_size(shape: Shape, component: Component, bucket: Bucket, record: Record) -> Fault:
    width, height = record.get("width"), record.get("height")
    if type(width) is int and type(height) is int and not component.fits(shape, width, height):
        # It belongs to another picture: packing did not do that, but training would use it.
        what = f"its shape {shape} fits neither its picture nor its bucket"
        return Fault(f"{component.name}_wrong_size", what, component.suffix)
    wanted = component.shape_for(bucket.width, bucket.height)
    what = f"is {shape}, but its bucket needs {wanted}"
    return Fault(OWN_SIZE, what, component.suffix, damage=False)


@lru_cache(maxsize=4096)
def _parsed(name: str) -> Bucket | None:
    return Bucket.parse(name) if is_bucket(name) else None


def _words(reason: str) -> str:
    return reason.replace("_", " ")
