"""The samples of a shard: where they are, and what their members must hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardwright.buckets import Bucket, is_bucket
from shardwright.recipe import JSON_SUFFIX, MEMBER_FIELDS, Component, Recipe, Shape
from shardwright.shards.format import tar, tarread
from shardwright.shards.format.index import ShardIndex
from shardwright.storage.local import Readable
from shardwright.store import npy, records
from shardwright.store.findings import Fault
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Record

_START = 1024  # bytes: the header of any array of ours, all of its mask, and of most records
OWN_SIZE = "own_size"  # reported once for a shard, not for each sample


class Place(NamedTuple):
    """Where the data of a member is, and how it begins."""

    file: Readable
    offset: int
    size: int
    start: bytes

    def first(self, count: int) -> bytes:
        """Give so many bytes of its data."""
        enough = count <= len(self.start)
        return self.start[:count] if enough else self.file.pread(self.offset, count)


Found = tuple[str, dict[str, Place]]  # a sample's name, and its members


def header(name: str, size: int) -> bytes:
    """Give the header that a member must have; if none can say this, one that no file has."""
    try:
        return tar.header(name, size)
    except ValueError:
        return b"\xff" * tar.BLOCK


def indexed(file: Readable, shard: ShardIndex, keys: Sequence[str]) -> Iterator[Found | Fault]:
    """Give the samples of a shard by its index, which must speak of this very tar."""
    spots = shard.spots()
    for image_id, key in zip(shard.head.ids, keys, strict=True):
        places = {}
        for suffix in shard.head.members:
            offset, size = next(spots)
            data = file.pread(offset - tar.BLOCK, tar.BLOCK + min(size, _START))
            if not data.startswith(header(f"{key}.{suffix}", size)):
                yield Fault("index_wrong", "is not where the index has it", suffix, image_id)
            places[suffix] = Place(file, offset, size, data[tar.BLOCK :])
        yield image_id, places


def walked(file: Readable, keys: list[str], recipe: Recipe) -> Iterator[Found | Fault]:
    """Give the samples of any tar as loaders see them, and all that would make them stumble.

    Their keys are added to the list, which is empty.
    """
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
                what = f"{entry.name} splits at its first dot, so loaders see the field {suffix}"
                yield Fault("splits_wrongly", what, true_suffix, sample.key)
            start = file.pread(entry.offset, min(entry.size, _START))
            places[suffix] = Place(file, entry.offset, entry.size, start)
        yield sample.key, places
    if extended:
        what = f"{extended} members have PAX or GNU headers, which slow loaders or stop them"
        yield Fault("extended_headers", what, damage=False)


def check_sample(
    places: Mapping[str, Place], bucket: str | None, recipe: Recipe
) -> tuple[str | None, list[Fault]]:
    """Read a sample's record, array headers and masks; give its image_id and what is wrong."""
    missing = [suffix for suffix in recipe.suffixes if suffix not in places]
    faults = [Fault("member_missing", f"has no {', '.join(missing)}")] if missing else []
    record: Record = {}
    if JSON_SUFFIX in places:
        record, found = _record(places[JSON_SUFFIX], bucket)
        faults += found
    for component in recipe.components:
        if component.suffix in places:
            faults += _array(places[component.suffix], component, record)
    for mask in recipe.masks:
        if mask.suffix in places:
            faults += _mask(places[mask.suffix], recipe.arrays[mask.suffix])
    image_id = record.get("image_id")
    sound = records.image_id_problem(image_id) is None
    return (str(image_id) if sound else None), faults


def _record(place: Place, bucket: str | None) -> tuple[Record, list[Fault]]:
    member = JSON_SUFFIX
    if place.size > records.LONGEST_LINE:
        return {}, [Fault("json_too_long", f"is {place.size} bytes long", member)]
    try:
        record = records.parse(place.first(place.size))
    except BadRecordError as error:
        return {}, [Fault(f"json_{error.reason}", f"is {_words(error.reason)}", member)]
    faults = []
    if absent := [name for name in MEMBER_FIELDS if name not in record]:
        faults.append(Fault("field_missing", f"has no {', '.join(absent)}", member))
    if problem := records.image_id_problem(record.get("image_id")):
        faults.append(Fault(problem, _words(problem), member))
    named = record.get("aspect_bucket")
    if bucket is not None and named != bucket:
        faults.append(Fault("other_bucket", f"says that its bucket is {named}", member))
    return record, faults


def _array(place: Place, component: Component, record: Record) -> Iterator[Fault]:
    try:
        _, shape = npy.check_part(place.first, place.size, component)
    except BadArrayError as error:
        yield _bad_array(component, error.reason)
        return
    bucket = record.get("aspect_bucket")
    wanted = _bucket_shape(component, bucket) if type(bucket) is str else None
    if wanted is None or shape == wanted:
        return
    width, height = record.get("width"), record.get("height")
    if type(width) is int and type(height) is int and shape != component.shape_for(width, height):
        # It belongs to another picture. Packing did not do that, but training would use it.
        what = f"its shape {shape} fits neither its picture nor its bucket"
        yield Fault(f"{component.name}_wrong_size", what, component.suffix)
    else:
        what = f"is {shape}, and its bucket needs {wanted}"
        yield Fault(OWN_SIZE, what, component.suffix, damage=False)


def _mask(place: Place, mask: Component) -> Iterator[Fault]:
    try:
        npy.check_part(place.first, place.size, mask)
    except BadArrayError as error:
        yield _bad_array(mask, error.reason)
        return
    values = place.first(place.size)[-mask.nbytes(mask.shape_for(0, 0)) :]
    if values.translate(None, b"\0\1"):
        yield Fault("mask_invalid", "has values other than 0 and 1", mask.suffix)


def _bad_array(component: Component, reason: str) -> Fault:
    what = f"is not as the recipe wants it ({_words(reason)})"
    return Fault(f"{component.name}_{reason}", what, component.suffix)


@lru_cache(maxsize=256)
def _bucket_shape(component: Component, bucket: str) -> Shape | None:
    if not is_bucket(bucket):
        return None
    size = Bucket.parse(bucket)
    return component.shape_for(size.width, size.height)


def _words(reason: str) -> str:
    return reason.replace("_", " ")
