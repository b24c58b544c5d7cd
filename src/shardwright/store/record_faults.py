"""What can be wrong with a store's lines and records, each with its cure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TypeGuard

from shardwright.buckets import is_bucket
from shardwright.recipe import FORMAT_VERSION, Recipe
from shardwright.store import records
from shardwright.store.findings import Finding
from shardwright.store.records import Record

LONGEST_SIDE = 999_999  # of a picture, as of a bucket

_MEND = "correct the record, or delete its line and run shardwright derive"
_DELETE = "delete the line and run shardwright derive"
_MIGRATE = "run shardwright migrate"

# What is wrong, and the cure. Where pack skips a record, the kind has the name of its reason.
FAULTS = {
    "not_json": ("not JSON", "fix the line, or delete it and run shardwright derive"),
    "not_an_object": ("not a JSON object", _DELETE),
    "line_too_long": (f"longer than {records.LONGEST_LINE >> 20} MiB", _DELETE),
    "torn_line": ("the last line is cut off, as by a crash", _DELETE),
    "stage1_record": ("a Stage 1 record, which holds its arrays itself", _MIGRATE),
    "inline_array": ("the record holds an array itself", _MIGRATE),
    "image_id_missing": ("no image_id", _MEND),
    "image_id_invalid": ("image_id is not a plain file name", _MEND),
    "image_path_missing": ("no image_path", _MEND),
    "image_path_invalid": ("image_path is not a path", _MEND),
    "aspect_bucket_missing": ("no aspect_bucket", _MEND),
    "aspect_bucket_invalid": ("aspect_bucket is not written WIDTHxHEIGHT", _MEND),
    "caption_missing": ("no caption", _MEND),
    "caption_invalid": ("caption is blank or not a string", _MEND),
    "mask_missing": ("no {mask}", _MEND),
    "mask_invalid": ("{mask} is not a list of {length} zeros and ones", _MEND),
    "mask_all_zero": ("there is a caption, but {mask} is all zeros", _MEND),
    "mask_without_caption": ("{mask} has ones, but there is no caption", _MEND),
    "size_missing": ("no height or no width", _MEND),
    "size_invalid": ("height or width is not that of a picture", _MEND),
    "format_version_missing": ("no format_version", _MEND),
    "format_version_wrong": (f"format_version is not {FORMAT_VERSION}", _MEND),
}


def is_stage1(record: Record, recipe: Recipe) -> bool:
    """Whether a record still holds arrays itself."""
    return not recipe.inline.keys().isdisjoint(record)


def faults(record: Record, recipe: Recipe) -> Iterator[str]:
    """Name everything that is wrong with a record, its arrays aside."""
    get = record.get
    if is_stage1(record, recipe):
        if "image_id" not in record:
            yield "stage1_record"
            return  # what else it lacks, migrating gives it
        yield "inline_array"
    if problem := records.image_id_problem(get("image_id")):
        yield problem
    path = get("image_path")
    if path is None:
        yield "image_path_missing"
    elif type(path) is not str or not path:
        yield "image_path_invalid"
    bucket = get("aspect_bucket")
    if bucket is None:
        yield "aspect_bucket_missing"
    elif type(bucket) is not str or not is_bucket(bucket):
        yield "aspect_bucket_invalid"
    caption = get("caption")
    captioned = type(caption) is str and bool(caption) and not caption.isspace()
    if not captioned:
        yield "caption_missing" if caption is None else "caption_invalid"
    for mask in recipe.masks:
        value = get(mask.field)
        if value is None:
            yield "mask_missing"
        elif not records.is_mask(value, mask):
            yield "mask_invalid"
        elif captioned is not (1 in value):
            yield "mask_all_zero" if captioned else "mask_without_caption"
    sides = get("height"), get("width")
    if None in sides:
        yield "size_missing"
    if not all(side is None or is_side(side) for side in sides):
        yield "size_invalid"
    version = get("format_version")
    if version is None:
        yield "format_version_missing"
    elif type(version) is not int or version != FORMAT_VERSION:
        yield "format_version_wrong"


def is_side(side: object) -> TypeGuard[int]:
    """Whether a value can be a picture's height or width."""
    return type(side) is int and 0 < side <= LONGEST_SIDE


def finding(kind: str, file: str, line: int, recipe: Recipe) -> Finding:
    """Say in words what is wrong with a line."""
    what, fix = FAULTS[kind]
    fields = " or ".join(mask.field for mask in recipe.masks)
    lengths = " or ".join(dict.fromkeys(str(mask.length) for mask in recipe.masks))
    what = what.format(mask=fields, length=lengths)
    return Finding(kind, file, line, what, fix)


class Twins:
    """Finds records that share an image_id or an image; knows every id and its first line."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self._images: dict[object, int] = {}  # the first line of each image
        self._first: dict[str, int] = {}  # of an id's image, where that line has another id

    def meet(self, image_id: str, path: object, number: int) -> tuple[str, str, str] | None:
        """Note a record; if it is a twin, give the kind, what is wrong, and the cure."""
        # Without a path, an image is known by its id.
        image = posixpath.normpath(path) if isinstance(path, str) else (image_id,)
        image_line = self._images.setdefault(image, number)
        id_line = self.ids.setdefault(image_id, number)
        if id_line == number:
            if image_line == number:
                return None
            self._first[image_id] = image_line
            return (
                "duplicate_image",
                f"the same image as line {image_line}, under another image_id",
                "delete one of the two lines and its arrays",
            )
        if self._first.get(image_id, id_line) == image_line:
            return (
                "repeated_record",
                f"the same image_id and image as line {id_line}",
                "delete one of the two lines; pack takes the later",
            )
        return (
            "duplicate_id",
            f"the same image_id as line {id_line}, for another image",
            "rename one of the images, delete both lines and their arrays, and run shardwright "
            "derive",
        )
