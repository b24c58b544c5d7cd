"""The metadata JSONL: its lines, and what makes a record fit to be packed."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from operator import attrgetter
from typing import IO, Annotated, Any, Protocol

import msgspec

from shardwright.buckets import is_bucket
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipe import Mask, Recipe

Record = dict[str, Any]

LONGEST_LINE = 1 << 26  # 64 MiB: beyond any record, even with inline arrays; bounds our memory
_DEEPEST = 100  # lists and objects in one another: what we read here we can write anywhere
_LONGEST_NAME = 255 - len(".npy")  # what a file system lets an image_id be
_BOM = b"\xef\xbb\xbf"
_TELL_EVERY = 256  # lines; to tell of each would cost more than to read it

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_Side = Annotated[int, msgspec.Meta(ge=1)]


class BadRecordError(ValueError):
    """A line that is not a usable record; ``args[0]`` is the reason's name."""

    @property
    def reason(self) -> str:
        """Name what is wrong."""
        return str(self.args[0])


class Line(msgspec.Struct, frozen=True, gc=False):  # which is made faster than any other class
    """One line of a JSONL file, without its line end; ``data`` is None where it is too long."""

    number: int
    offset: int
    data: bytes | None


def lines(file: IO[bytes], number: int = 0, offset: int = 0) -> Iterator[Line]:
    """Read the lines of a JSONL file; blank ones are passed over.

    A line ends at a line feed and at nothing else, and no line costs more than LONGEST_LINE. Where
    it is not read from its start, say how many lines and bytes lie before.
    """
    read = partial(file.readline, LONGEST_LINE)
    for data in iter(read, b""):
        number += 1
        start = offset
        offset += len(data)
        if len(data) == LONGEST_LINE:
            while not data.endswith(b"\n") and (rest := read()):
                offset += len(rest)
                data = rest
            if offset - start > LONGEST_LINE:
                yield Line(number, start, None)
                continue
        if number == 1 and data.startswith(_BOM):
            data = data[len(_BOM) :]
            start += len(_BOM)
        data = data.rstrip(b"\r\n")
        if data and not data.isspace():
            yield Line(number, start, data)


def counted(lines: Iterable[Line], size: int, progress: Progress) -> Iterator[Line]:
    """Pass on the lines of a file, and tell how many of its bytes lie behind."""
    position = 0
    for line in lines:
        if line.number % _TELL_EVERY == 0:
            check()
            progress.advance(line.offset - position)
            position = line.offset
        yield line
    progress.advance(size - position)


def parse(line: bytes | None) -> Record:
    """Read one record, or say by BadRecordError what is wrong with the line."""
    if line is None:
        raise BadRecordError("line_too_long")
    try:
        record = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRecordError("not_json") from None
    if type(record) is not dict:
        raise BadRecordError("not_an_object")
    if line.count(b"{") + line.count(b"[") > _DEEPEST and _is_deeper(record, _DEEPEST):
        raise BadRecordError("nested_too_deep")
    return record


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def line(record: Record) -> bytes:
    """Write a record as one compact line."""
    return _encode(record)


def ordered(record: Record, recipe: Recipe) -> Record:
    """Give a record with the fields of its recipe first, in order, and then the others."""
    return {field: record[field] for field in recipe.record_fields if field in record} | record


def image_id_of(image_path: str) -> str:
    """Derive an image's id: its file name without the extension."""
    return posixpath.splitext(posixpath.basename(image_path))[0]


def image_id_problem(image_id: object) -> str | None:
    """Say why a value cannot be an image_id: it must be a plain file name."""
    if image_id is None:
        return "image_id_missing"
    if (
        type(image_id) is not str
        or not image_id
        or "/" in image_id
        or "\0" in image_id
        or image_id in (".", "..")
        or (len(image_id) > _LONGEST_NAME // 4 and len(os.fsencode(image_id)) > _LONGEST_NAME)
    ):
        return "image_id_invalid"
    return None


class Essentials(Protocol):
    """What packing asks of a record, beside its masks."""

    image_id: str
    aspect_bucket: str
    caption: str
    image_path: str | None
    height: int | None
    width: int | None


class Rules:
    """What makes a record of a recipe fit to be packed, its arrays aside."""

    def __init__(self, recipe: Recipe) -> None:
        self.masks = recipe.masks
        raw = {f"mask{number}": mask for number, mask in enumerate(self.masks)}
        fields: list[Any] = [("image_id", str), ("aspect_bucket", str), ("caption", str)]
        fields += [(name, msgspec.Raw) for name in raw]
        fields += [("image_path", str | None, None)]
        fields += [(side, _Side | None, None) for side in ("height", "width")]
        spelt = {name: mask.field for name, mask in raw.items()}
        kind = msgspec.defstruct("Essentials", fields, rename=spelt, gc=False)
        self._decode = msgspec.json.Decoder(kind).decode
        self._raw = [(attrgetter(name), mask.length) for name, mask in raw.items()]

    def essentials(self, line: bytes | None) -> Essentials | None:
        """Read what packing asks of a record, if it has it all and soundly, else give None.

        Several times faster than ``parse`` and ``problem``, which say what is wrong. A user's own
        fields it passes over, so that ``parse`` may still refuse a number or a depth in them.
        """
        if line is None:
            return None
        try:
            if not line.isascii():
                line.decode()
            found: Any = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        caption = found.caption
        if not caption or caption.isspace() or not is_bucket(found.aspect_bucket):
            return None
        for get, length in self._raw:
            if not _is_mask_text(bytes(get(found)), length):
                return None
        essentials: Essentials = found
        return essentials if image_id_problem(found.image_id) is None else None

    def problem(self, record: Record) -> str | None:
        """Name the first reason why a record, its id aside, is not ready; None if it is."""
        get = record.get
        bucket = get("aspect_bucket")
        if bucket is None:
            return "aspect_bucket_missing"
        if type(bucket) is not str or not is_bucket(bucket):
            return "aspect_bucket_invalid"
        caption = get("caption")
        if caption is None:
            return "caption_missing"
        if type(caption) is not str or not caption or caption.isspace():
            return "caption_invalid"
        for mask in self.masks:
            found = get(mask.field)
            if found is None:
                return "mask_missing"
            if not is_mask(found, mask):
                return "mask_invalid"
        # The rest may be absent: a picture can be packed without saying where it was.
        path = get("image_path")
        if path is not None and type(path) is not str:
            return "image_path_invalid"
        for side in (get("height"), get("width")):
            if side is not None and (type(side) is not int or side < 1):
                return "size_invalid"
        return None


def is_mask(value: object, mask: Mask) -> bool:
    """Whether a value is a list of exactly the integers 0 and 1; true, 1.0 and "1" are not.

    In Python those all equal 1, and to ask each element for its type is the slowest part of a scan.
    Written as JSON they differ: every element is one character, and that character 0 or 1.
    """
    return (
        type(value) is list
        and len(value) == mask.length
        and _is_mask_text(_encode(value), mask.length)
    )


@lru_cache(maxsize=4096)  # most captions are of one of a few lengths
def _is_mask_text(text: bytes, length: int) -> bool:
    """Whether JSON, known to be sound, is a mask.

    One list, and one comma fewer than digits, so that no number has two of them.
    """
    digits = text.count(b"0") + text.count(b"1")
    return (
        text.count(b"[") == 1
        and digits == length
        and text.count(b",") == length - 1
        and not text.translate(None, b"[]01, \t\r\n")
    )
