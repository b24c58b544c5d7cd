"""A table of all images, for other tools: Parquet, CSV or JSONL.

The rows are read twice: first for the columns and their types, then to be written.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from shardwright.errors import InputMissingError, MissingExtraError, UsageError
from shardwright.interrupts import check
from shardwright.progress import Progress
from shardwright.reporting import Exported
from shardwright.reporting.rows import Row, Rows
from shardwright.storage import files
from shardwright.storage.urls import resolved
from shardwright.store.store import Store

_BATCH = 10_000  # rows in memory
_INTEGERS = range(-(1 << 63), 1 << 63)  # that other tools can hold

Columns = dict[str, type]  # str, or what else all values are
Write = Callable[[list[Row]], object]


def write_table(path: Path, rows: Rows, progress: Progress) -> Exported:
    """Write all rows, or nothing."""
    progress.phase("columns", len(rows), "rows")
    columns = _columns(rows, progress)
    progress.phase("export", len(rows), "rows")
    count = 0
    # Nobody holds a lock here: another run may be writing a table of this name.
    tmp = path.with_name(f"{path.name}.{os.getpid()}{files.TMP_SUFFIX}")
    with files.NewFile(path, tmp=tmp) as file:
        with _FORMATS[path.suffix.lower()](file, columns) as write:
            for batch in _batches(rows, progress):
                write(batch)
                count += len(batch)
        rows.require_unchanged()
        file.seal(file.written)
    files.publish(tmp, path)
    files.sync_folder(path.parent)
    return Exported(str(path), count)


def require_table(path: Path, store: Store) -> None:
    """Raise before any work if a table cannot be written there."""
    if path.suffix.lower() not in _FORMATS:
        what = f"--export {path}: unknown extension"
        raise UsageError(what, fix=f"choose from {', '.join(_FORMATS)}")
    if path.is_dir():
        raise UsageError("is a folder", path=path, fix="give --export a file")
    if not path.parent.is_dir():
        raise InputMissingError("no such folder", path=path.parent, fix="make it first")
    target = resolved(path)
    if target == resolved(store.jsonl) or resolved(store.state) in target.parents:
        raise UsageError("belongs to the store", path=path, fix="give --export another file")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def _columns(rows: Rows, progress: Progress) -> Columns:
    """Find the columns and their types."""
    found = {name: {kind} for name, kind in rows.usual.items()}
    for batch in _batches(rows, progress):
        for row in batch:
            for name, value in row.items():
                kinds = found.setdefault(name, set())
                if value is not None:
                    kinds.add(_kind(value))
    return {name: _common(kinds) for name, kinds in found.items()}


def _batches(rows: Rows, progress: Progress) -> Iterator[list[Row]]:
    coming = iter(rows)
    while batch := list(islice(coming, _BATCH)):
        check()
        yield batch
        progress.advance(len(batch))


def _kind(value: object) -> type:
    return str if isinstance(value, int) and value not in _INTEGERS else type(value)


def _common(kinds: set[type]) -> type:
    """Choose the type of a column: text, if its values have several types or are nested."""
    if kinds == {int, float}:
        return float
    (kind,) = kinds if len(kinds) == 1 else (str,)
    return kind if kind in (bool, int, float, datetime) else str


def _text(value: Any) -> str:  # noqa: ANN401 - anything JSON can hold, or a time
    """Write a value as text: a string as it is, and anything else as JSON."""
    if isinstance(value, datetime):
        value = msgspec.to_builtins(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@contextmanager
def _jsonl(file: files.NewFile, columns: Columns) -> Iterator[Write]:
    encode = msgspec.json.Encoder().encode

    def write(rows: list[Row]) -> None:
        lines = (encode({name: row.get(name) for name in columns}) + b"\n" for row in rows)
        file.write(b"".join(lines))

    yield write


@contextmanager
def _csv(file: files.NewFile, columns: Columns) -> Iterator[Write]:
    def write(rows: list[Row]) -> None:
        values = ([row.get(name) for name in columns] for row in rows)
        table.writerows(["" if value is None else _text(value) for value in row] for row in values)

    with io.TextIOWrapper(io.BufferedWriter(_Sink(file)), "utf-8", newline="") as text:
        table = csv.writer(text)
        table.writerow(columns)
        yield write


class _Sink(io.RawIOBase):
    """A new file, as pyarrow and csv take it."""

    def __init__(self, file: files.NewFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.written

    def write(self, data: Any) -> int:  # noqa: ANN401 - a buffer
        view = memoryview(data)
        self._file.write(view)
        return view.nbytes


@contextmanager
def _parquet(file: files.NewFile, columns: Columns) -> Iterator[Write]:
    pa, parquet = _pyarrow()
    kinds = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        datetime: pa.timestamp("us", tz="UTC"),
        str: pa.string(),
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])

    def value(row: Row, name: str) -> object:
        found = row.get(name)
        return found if found is None or columns[name] is not str else _text(found)

    def write(rows: list[Row]) -> None:
        arrays = [
            pa.array([value(row, name) for row in rows], type=kinds[kind])
            for name, kind in columns.items()
        ]
        writer.write_batch(pa.record_batch(arrays, schema=schema))

    with parquet.ParquetWriter(_Sink(file), schema, compression="zstd") as writer:
        yield write


_FORMATS: dict[str, Callable[[files.NewFile, Columns], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": _jsonl,
}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        what = f"a .parquet file needs pyarrow ({error})"
        fix = "run pip install '.[export]' in the checkout of shardwright, or export .csv or .jsonl"
        raise MissingExtraError(what, fix=fix) from error
    return pyarrow, pyarrow.parquet
