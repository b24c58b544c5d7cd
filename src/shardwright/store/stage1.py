"""The Stage 1 format, a JSONL with inline arrays, and its conversion to Stage 2 line by line."""

from __future__ import annotations

import json
import os
import posixpath
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from shardwright import regular
from shardwright.recipes import FORMAT_VERSION, Component, Recipe
from shardwright.store import records
from shardwright.store.records import BadRecordError, Line, Record

if TYPE_CHECKING:
    from shardwright.store.arrays import Array

_KNOWN_VERSIONS = (None, 1, FORMAT_VERSION)
_OWN_FIELDS = ("image_id", "image_path", "height", "width", "aspect_bucket", "format_version")
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height

# Fields stay as they are written, so that a user's own fields lose nothing.
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Stage2:
    """A migrated line: a record of the store, and the arrays it held."""

    image_id: str
    line: bytes
    arrays: dict[Component, Array]


@dataclass
class Repeated:
    """The ids that occur more than once, in so many lines."""

    shared: set[str]  # by more than one image
    last: dict[str, int]  # the number of the last line of each, which counts
    lines: int = 0


def repeated_ids(lines: Iterable[Line]) -> Repeated:
    """Find the ids that more than one line has."""
    images: dict[str, int] = {}
    repeated = Repeated(set(), {})
    for line in lines:
        repeated.lines += 1
        try:
            names = records.names(line.data)
            image_id = _image_id(names.image_id, names.image_path)
        except BadRecordError:
            continue  # ``to_stage2`` gives the reason
        # A hash, because paths are long and there may be millions of them.
        image = hash(posixpath.normpath(names.image_path))
        if image_id not in images:
            images[image_id] = image
            continue
        repeated.last[image_id] = line.number
        if images[image_id] != image:
            repeated.shared.add(image_id)
    return repeated


def to_stage2(line: Line, repeated: Repeated, recipe: Recipe) -> Stage2 | None:
    """Migrate a line; None if it is a Stage 2 record already.

    Raises BadRecordError if it cannot be migrated. Of several lines of one image only the last is
    migrated, because the arrays of another may belong to another caption.
    """
    fields, own = _fields(line.data, recipe)
    inline = [name for name in recipe.inline if name in fields]
    image_id, version = own.get("image_id"), own.get("format_version")
    named = records.is_image_id(image_id)
    shared = named and image_id in repeated.shared
    if type(version) not in (type(None), int) or version not in _KNOWN_VERSIONS:
        raise BadRecordError("format_version_unknown")
    if version == FORMAT_VERSION and named and not shared and not inline:
        return None
    image_id = _image_id(image_id, own.get("image_path"))
    if image_id in repeated.shared:
        raise BadRecordError("duplicate_id")
    if repeated.last.get(image_id, line.number) != line.number:
        raise BadRecordError("superseded")
    arrays = {}
    for name in inline:
        raw, component = bytes(fields.pop(name)), recipe.inline[name]
        if raw == b"null":
            continue
        if component in arrays:
            raise BadRecordError(f"{component.name}_repeated")
        arrays[component] = _trimmed(_array(raw, component, name), component, fields)
    height, width = _size(own)
    additions: Record = {"image_id": image_id, "height": height, "width": width}
    additions["aspect_bucket"] = str(recipe.bucket_for(width, height))
    fields |= {name: value for name, value in additions.items() if own.get(name) is None}
    fields["format_version"] = FORMAT_VERSION
    written = records.line(records.ordered(fields, recipe))
    records.parse(written)  # to be sure that it can be read: not every field was checked
    return Stage2(image_id, msgspec.json.format(written, indent=-1), arrays)


def _fields(data: bytes | None, recipe: Recipe) -> tuple[Record, Record]:
    """Split a line into its fields as they are written, and read the values of our own."""
    try:
        fields: Record = _decode_fields(data or b"")
        return fields, {name: _decode(fields[name]) for name in _OWN_FIELDS if name in fields}
    except records.NOT_JSON:
        raise BadRecordError(_why_not_json(data, recipe)) from None


def _why_not_json(data: bytes | None, recipe: Recipe) -> str:
    """Name the reason; Python's ``json`` writes NaN, which is not JSON."""
    try:
        records.parse(data)
    except BadRecordError as error:
        if error.reason != "not_json":
            return error.reason
    with suppress(ValueError, RecursionError):
        record = json.loads(data or b"")
        for name in recipe.inline if isinstance(record, dict) else ():
            try:
                json.dumps(record.get(name), allow_nan=False)
            except ValueError:
                return f"{name}_not_finite"
    return "not_json"


def _image_id(image_id: object, image_path: object) -> str:
    """Give the id of a record, or else the one that follows from its image's path."""
    if image_path is None:
        raise BadRecordError("image_path_missing")
    if type(image_path) is not str or not image_path:
        raise BadRecordError("image_path_invalid")
    image_id = records.image_id_of(image_path) if image_id is None else image_id
    if not records.is_image_id(image_id):
        raise BadRecordError("image_id_invalid")
    return image_id


def _array(raw: bytes, component: Component, name: str) -> Array:
    """Read an inline array: lists of numbers, nested once per axis."""
    import numpy as np  # here, because `import shardwright` must not need it

    from shardwright.store.arrays import stored
    from shardwright.store.arrays import values as from_stored

    try:
        given = np.array(_nested(len(component.shape)).decode(raw), np.float64)
        array = stored(given, component)
    except msgspec.MsgspecError:
        raise BadRecordError(f"{name}_invalid") from None
    except ValueError:  # lists of different lengths
        raise BadRecordError(f"{name}_wrong_shape") from None
    if not component.accepts(array.shape):
        raise BadRecordError(f"{name}_wrong_shape")
    if component.is_float:
        if not np.isfinite(from_stored(array, component)).all():  # too large for its type
            raise BadRecordError(f"{name}_not_finite")
    elif (array != given).any():  # a fraction, or too large
        raise BadRecordError(f"{name}_invalid")
    return array


def _trimmed(array: Array, component: Component, fields: Record) -> Array:
    """Keep the rows that the mask keeps, if the array has all of them."""
    import numpy as np

    mask = component.mask
    if not component.trim or mask is None or len(array) != mask.length:
        return array
    given = _decode(fields[mask.field]) if mask.field in fields else []
    if not records.is_mask(given, mask) or 1 not in given:
        raise BadRecordError("mask_invalid")
    kept: Array = array[np.array(given, bool)]
    return kept


@cache
def _nested(axes: int) -> msgspec.json.Decoder[Any]:
    kind: Any = float
    for _ in range(axes):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _size(own: Record) -> tuple[int, int]:
    """Give height and width, from the image if the record has none."""
    sides: list[Any] = [own.get("height"), own.get("width")]
    if None in sides:
        found = _image_size(own["image_path"])
        sides = [side if given is None else given for given, side in zip(sides, found, strict=True)]
    if any(type(side) is not int or side < 1 for side in sides):
        raise BadRecordError("size_invalid")
    return sides[0], sides[1]


def _image_size(path: str) -> tuple[int, int]:
    """Read height and width of an image, after its EXIF orientation."""
    if not os.path.isfile(path):
        raise BadRecordError("size_missing")
    from PIL import ExifTags, Image  # here, because few records need it

    try:
        with warnings.catch_warnings(), regular.opened(path) as file, Image.open(file) as image:
            warnings.simplefilter("ignore")
            width, height = image.size
            turned = image.getexif().get(ExifTags.Base.Orientation) in _TURNED
    except Exception:  # a broken file makes Pillow's readers raise almost anything
        raise BadRecordError("image_unreadable") from None
    return (width, height) if turned else (height, width)
