"""The metadata JSONL: its lines and records."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

import msgspec

from shardwright import regular
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.recipes import Mask, Recipe
from shardwright.storage.files import explained

Record = dict[str, Any]
T = TypeVar("T")

CROP = "crop"  # what a fitted array shows of the picture: left, top, right, bottom
LONGEST_LINE = 1 << 26  # 64 MiB: more than any record with inline arrays; limits our memory
_DEEPEST = 100  # levels of lists and objects: what is read can also be written
LONGEST_FILE_NAME = 255  # bytes, as file systems limit it
_LONGEST_NAME = LONGEST_FILE_NAME - len(".npy")  # of an image_id
_NO_NAMES = frozenset({"", ".", ".."})
_BOM = b"\xef\xbb\xbf"
_READ_AHEAD = 1 << 20
_REPORT_EVERY = 256  # lines; reporting each would take longer than reading it

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class BadRecordError(ValueError):
    """A line that is not a usable record; ``args[0]`` names the reason."""

    @property
    def reason(self) -> str:
        """Name what is wrong."""
        return str(self.args[0])


class Line(msgspec.Struct, frozen=True, gc=False):  # faster to create than any other class
    """One line of a JSONL file, without its line end; ``data`` is None if it is too long."""

    number: int
    offset: int
    data: bytes | None


class Names(msgspec.Struct, gc=False):
    """The names in a record, which may be anything."""

    image_id: Any = None
    image_path: Any = None


_decode_names = msgspec.json.Decoder(Names).decode


def lines(file: IO[bytes], number: int = 0, offset: int = 0) -> Iterator[Line]:
    """Read the lines of a JSONL file, without the blank ones.

    Only a line feed ends a line, and no line takes more memory than LONGEST_LINE. ``number`` and
    ``offset`` are the lines and bytes before the file's position.
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


def walk(
    path: Path,
    read: Callable[[bytes | None], T],
    *,
    bad: Callable[[Line, str], object] = lambda line, reason: None,
    progress: Progress | None = None,
    phase: str = "records",
) -> Iterator[tuple[Line, T]]:
    """Read all records of a JSONL; a missing file has none.

    A line for which ``read`` raises BadRecordError goes to ``bad``, with the reason.
    """
    progress = progress or Progress()
    with explained(path):
        try:
            file = regular.opened(path, _READ_AHEAD)
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            progress.phase(phase, size, "B")
            position = 0
            for line in lines(file):
                if line.number % _REPORT_EVERY == 0:
                    check()
                    progress.advance(line.offset - position)
                    position = line.offset
                try:
                    record = read(line.data)
                except BadRecordError as error:
                    bad(line, error.reason)
                else:
                    yield line, record
            progress.advance(size - position)


def parse(line: bytes | None) -> Record:
    """Read one record, or raise BadRecordError."""
    if line is None:
        raise BadRecordError("line_too_long")
    try:
        record = _decode(line)
    except NOT_JSON:
        raise BadRecordError("not_json") from None
    if type(record) is not dict:
        raise BadRecordError("not_an_object")
    if line.count(b"{") + line.count(b"[") > _DEEPEST and _is_deeper(record, _DEEPEST):
        raise BadRecordError("nested_too_deep")
    return record


def names(line: bytes | None) -> Names:
    """Read only the names in a record; faster than ``parse``, which may still refuse it."""
    try:
        return _decode_names(line or b"")
    except NOT_JSON:
        raise BadRecordError("not_json") from None


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


def own_fields(recipe: Recipe) -> set[str]:
    """Name the fields that are never a user's own column."""
    return {*recipe.record_fields, *recipe.inline, CROP}


def image_id_of(image_path: str) -> str:
    """Derive an image's id: its file name without the extension."""
    return posixpath.splitext(posixpath.basename(image_path))[0]


def is_image_id(value: object) -> TypeGuard[str]:
    """Whether a value is a valid image_id: a plain file name."""
    return (
        type(value) is str
        and value not in _NO_NAMES
        and "/" not in value
        and "\0" not in value
        and (len(value) <= _LONGEST_NAME // 4 or len(os.fsencode(value)) <= _LONGEST_NAME)
    )


def image_id_problem(image_id: object) -> str | None:
    """Name why a value is not a valid image_id."""
    if image_id is None:
        return "image_id_missing"
    return None if is_image_id(image_id) else "image_id_invalid"


def is_mask(value: object, mask: Mask) -> bool:
    """Whether a value is a list of the integers 0 and 1; true, 1.0 and "1" are not.

    In Python all of these equal 1, and checking the type of each element is slow. As JSON they
    differ: every element must be the one character 0 or 1.
    """
    return _is_mask_text(_encode(value), mask.length)


@lru_cache(maxsize=4096)  # captions have few different lengths
def _is_mask_text(text: bytes, length: int) -> bool:
    """Whether valid JSON is a mask: one list, with a comma between any two digits."""
    digits = text.count(b"0") + text.count(b"1")
    return (
        text.count(b"[") == 1
        and digits == length
        and text.count(b",") == length - 1
        and not text.translate(None, b"[]01, \t\r\n")
    )
