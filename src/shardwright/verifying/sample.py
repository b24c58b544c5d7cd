"""What the members of a sample must hold, wherever they lie in a shard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from shardwright.buckets import Bucket, is_bucket
from shardwright.recipe import JSON_SUFFIX, MEMBER_FIELDS, Component, Recipe, Shape
from shardwright.store import npy, records
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Record

START = 1024  # bytes: the header of any array of ours, all of its mask, and of most records


class Place(NamedTuple):
    """Where the data of a member is, and how it begins."""

    offset: int
    size: int
    start: bytes  # at most START

    def data(self, fd: int) -> bytes:
        """Give all data of a small member."""
        if len(self.start) == self.size:
            return self.start
        return os.pread(fd, self.size, self.offset)


class Fault(NamedTuple):
    """What is wrong with a sample, or with one member of it."""

    kind: str
    member: str | None
    what: str
    damage: bool = True
    cure: str | None = None  # where it is not that of the shard


OWN_SIZE = "own_size"  # told once for a shard, not for each sample


def check(
    fd: int, places: Mapping[str, Place], bucket: str | None, recipe: Recipe
) -> tuple[str | None, list[Fault]]:
    """Read a sample's record, array headers and mask; give its image_id and what is wrong."""
    missing = [suffix for suffix in recipe.suffixes if suffix not in places]
    faults = [Fault("member_missing", None, f"has no {', '.join(missing)}")] if missing else []
    record: Record = {}
    if JSON_SUFFIX in places:
        record, found = _record(fd, places[JSON_SUFFIX], bucket)
        faults += found
    for component in recipe.components:
        if component.suffix in places:
            faults += _array(fd, places[component.suffix], component, record)
    for mask in recipe.masks:
        if mask.suffix in places:
            faults += _mask(fd, places[mask.suffix], recipe.arrays[mask.suffix])
    image_id = record.get("image_id")
    sound = records.image_id_problem(image_id) is None
    return (str(image_id) if sound else None), faults


def _record(fd: int, place: Place, bucket: str | None) -> tuple[Record, list[Fault]]:
    member = JSON_SUFFIX
    if place.size > records.LONGEST_LINE:
        return {}, [Fault("json_too_long", member, f"is {place.size} bytes long")]
    try:
        record = records.parse(place.data(fd))
    except BadRecordError as error:
        return {}, [Fault(f"json_{error.reason}", member, f"is {_words(error.reason)}")]
    faults = []
    if absent := [name for name in MEMBER_FIELDS if name not in record]:
        faults.append(Fault("field_missing", member, f"has no {', '.join(absent)}"))
    if problem := records.image_id_problem(record.get("image_id")):
        faults.append(Fault(problem, member, _words(problem)))
    named = record.get("aspect_bucket")
    if bucket is not None and named != bucket:
        faults.append(Fault("other_bucket", member, f"says that its bucket is {named}"))
    return record, faults


def _array(fd: int, place: Place, component: Component, record: Record) -> list[Fault]:
    try:
        _, shape = npy.check_part(fd, place.offset, place.size, place.start, component)
    except BadArrayError as error:
        return [_bad_array(component, error.reason)]
    bucket = record.get("aspect_bucket")
    wanted = _bucket_shape(component, bucket) if type(bucket) is str else None
    if wanted is None or shape == wanted:
        return []
    width, height = record.get("width"), record.get("height")
    if type(width) is int and type(height) is int and shape != component.shape_for(width, height):
        # It belongs to another picture. Packing did not do that, but training would use it.
        what = f"its shape {shape} fits neither its picture nor its bucket"
        return [Fault(f"{component.name}_wrong_size", component.suffix, what)]
    what = f"is {shape}, and its bucket needs {wanted}"
    return [Fault(OWN_SIZE, component.suffix, what, damage=False)]


def _mask(fd: int, place: Place, mask: Component) -> list[Fault]:
    try:
        npy.check_part(fd, place.offset, place.size, place.start, mask)
    except BadArrayError as error:
        return [_bad_array(mask, error.reason)]
    values = place.data(fd)[-mask.nbytes(mask.shape_for(0, 0)) :]
    if values.translate(None, b"\0\1"):
        return [Fault("mask_invalid", mask.suffix, "has values other than 0 and 1")]
    return []


def _bad_array(component: Component, reason: str) -> Fault:
    what = f"is not as the recipe wants it ({_words(reason)})"
    return Fault(f"{component.name}_{reason}", component.suffix, what)


@lru_cache(maxsize=256)
def _bucket_shape(component: Component, bucket: str) -> Shape | None:
    if not is_bucket(bucket):
        return None
    size = Bucket.parse(bucket)
    return component.shape_for(size.width, size.height)


def _words(reason: str) -> str:
    return reason.replace("_", " ")
