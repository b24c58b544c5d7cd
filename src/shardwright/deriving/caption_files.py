"""The rows of a captions file: JSONL, CSV with any usual separator, TSV or Parquet."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from io import TextIOWrapper
from typing import IO, Any, BinaryIO, NamedTuple

from shardwright.errors import MissingExtraError, UsageError
from shardwright.interrupts import check
from shardwright.storage import files
from shardwright.storage.urls import Location
from shardwright.store import records
from shardwright.store.records import BadRecordError

PATH_FIELDS = ("image_path", "file_name")
GIVE = "give --captions a JSONL, CSV, TSV or Parquet file"
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t,;"}  # the first that finds a path; else the first
_PARQUET = b"PAR1"
_STRANGE = {  # what a file begins with that is none of these: what it is, and what to do
    b"\x1f\x8b": ("is compressed", "unpack it with gunzip first"),
    b"PK\x03\x04": ("is a spreadsheet or a zip file", "save it as CSV"),
    b"\xff\xfe": ("is UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("is UTF-16 text", "save it as UTF-8"),
}
# As JSON writes it: with a zero before it, it is a name.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST_NUMBER = 18  # characters of an integer; a longer one is a name, or is not exact elsewhere

Row = dict[str, Any]


class Rows(NamedTuple):
    """The rows of a file, each with its number, and what the numbers count."""

    unit: str
    each: Iterator[tuple[int, Row]]


def rows(path: Location, texts: Collection[str]) -> Rows:
    """Read the rows of a file that exists; the columns ``texts`` of a CSV are never numbers."""
    file = _File(path, files.reopened(path))
    with files.explained(path), file.opened() as begin:
        head = begin.read(len(_PARQUET))
    for magic, (what, fix) in _STRANGE.items():
        if head.startswith(magic):
            raise UsageError(what, path=path, fix=fix)
    suffix = path.suffix.lower()
    if head == _PARQUET or suffix == ".parquet":
        return Rows("row", _parquet_rows(file))
    if suffix in _SEPARATORS:
        return Rows("line", _csv_rows(file, _SEPARATORS[suffix], texts))
    return Rows("line", _jsonl_rows(file))


class _File(NamedTuple):
    """A file that may be read more than once; from a URL it is fetched once."""

    path: Location
    opened: Callable[[], BinaryIO]


def _jsonl_rows(file: _File) -> Iterator[tuple[int, Row]]:
    path = file.path
    with files.explained(path), file.opened() as opened:
        for line in records.lines(opened):
            try:
                yield line.number, records.parse(line.data)
            except BadRecordError as error:
                if line.number == 1:
                    _explain(path, line.data or b"")
                what = f"line {line.number}: {error.reason.replace('_', ' ')}"
                raise UsageError(what, path=path, fix="fix the line") from None


def _explain(path: Location, first: bytes) -> None:
    """Raise if the first line of a file shows that it is not JSONL at all."""
    if first.lstrip().startswith(b"["):
        raise UsageError("is a JSON array, not JSONL", path=path, fix="write one object a line")
    if not first.lstrip().startswith(b"{") and path.suffix.lower() not in (".jsonl", ".ndjson"):
        raise UsageError("is not JSONL", path=path, fix=f"{GIVE}, with that ending")


def _csv_rows(file: _File, separators: str, texts: Collection[str]) -> Iterator[tuple[int, Row]]:
    try:
        separator = _separator(file, separators)
        numbers = _number_columns(file, separator, texts)
        for ended, row in _cells(file, separator):
            for name in numbers:
                row[name] = _number((row[name] or "").strip())
            yield ended, row
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", path=file.path, fix="save it as UTF-8") from None


def _separator(file: _File, separators: str) -> str:
    """Find what separates the cells of a file, from its first line."""
    heads = {separator: _head(file, separator) for separator in separators}
    for separator, names in heads.items():
        if not set(names).isdisjoint(PATH_FIELDS):
            if twice := _twice(names):
                what = f'line 1: the column "{twice}" is there twice'
                raise UsageError(what, path=file.path, fix="rename or remove one of them")
            return separator
    if names := heads[separators[0]]:
        what = f"line 1: names no image: its columns are {', '.join(names)}"
        raise UsageError(what, path=file.path, fix=f"name one {' or '.join(PATH_FIELDS)}")
    return separators[0]


def _twice(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _head(file: _File, separator: str) -> list[str]:
    # Not strict: with another separator than its own, a line with quotes is no error yet.
    with (
        files.explained(file.path),
        file.opened() as opened,
        _text(opened) as text,
        suppress(csv.Error),
    ):
        return [name.strip() for name in next(csv.reader(text, delimiter=separator), [])]
    return []


def _text(file: IO[bytes]) -> TextIOWrapper:
    return TextIOWrapper(file, "utf-8-sig", newline="")


def _cells(file: _File, separator: str) -> Iterator[tuple[int, Row]]:
    ended = 0  # the last line of the last complete row: an unclosed quote begins on the next
    try:
        with files.explained(file.path), file.opened() as opened:
            reader = csv.DictReader(_text(opened), strict=True, delimiter=separator)
            ended = reader.line_num if reader.fieldnames else 0
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            for row in reader:
                ended = reader.line_num
                if None in row:  # where DictReader puts the cells without a name
                    what = f"line {ended}: has more cells than the first line"
                    named = {",": "commas", ";": "semicolons", "\t": "tabs"}[separator]
                    fix = f"put quotes around a caption with {named}"
                    raise UsageError(what, path=file.path, fix=fix)
                yield ended, row
    except csv.Error as error:
        raise UsageError(f"line {ended + 1}: {error}", path=file.path, fix="fix the line") from None


def _number_columns(file: _File, separator: str, texts: Collection[str]) -> list[str]:
    """Name the columns in which every cell that is not empty is a number."""
    maybe, seen = [name for name in _head(file, separator) if name not in texts], set[str]()
    for _, row in _cells(file, separator) if maybe else ():
        check()
        cells = {name: (row[name] or "").strip() for name in maybe}
        seen.update(name for name, cell in cells.items() if cell)
        maybe = [name for name, cell in cells.items() if not cell or _is_number(cell)]
        if not maybe:
            break
    return [name for name in maybe if name in seen]


def _is_number(cell: str) -> bool:
    found = _NUMBER.fullmatch(cell)
    if found is None:
        return False
    whole = found[1] is found[2] is None
    return len(cell) <= _LONGEST_NUMBER if whole else math.isfinite(float(cell))


def _number(cell: str) -> int | float | None:
    if not cell:
        return None
    return float(cell) if set(cell) & set(".eE") else int(cell)


def _parquet_rows(file: _File) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        what = f"{file.path}: a Parquet file needs pyarrow ({error})"
        fix = "run pip install '.[export]' in the checkout of shardwright, or save it as CSV"
        raise MissingExtraError(what, fix=fix) from error
    number = 0
    try:
        with file.opened() as opened, pyarrow.parquet.ParquetFile(opened) as table:
            twice, columns = _twice(table.schema_arrow.names), iter(table.schema_arrow)
            # Also in a list or a struct.
            held = next((each.name for each in columns if "binary" in str(each.type)), None)
            if twice or held:
                why = "is there twice" if twice else "holds bytes, which no record can"
                what = f'the column "{twice or held}" {why}'
                raise UsageError(what, path=file.path, fix="save it without this column")
            for batch in table.iter_batches(1024, use_threads=False):  # threads do not outlive fork
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        what = f"cannot be read as Parquet: {str(error).splitlines()[0]}"
        raise UsageError(what, path=file.path, fix="write the file again") from error
