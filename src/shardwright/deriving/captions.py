"""The captions a user gives in a file, and those that lie beside their images.

A row of the file may have any columns: texts that components are made from, and others, which are
kept in the record.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from typing import IO, Any

import msgspec

from shardwright import regular
from shardwright.deriving import places
from shardwright.deriving.sources import Source
from shardwright.errors import InputMissingError, UsageError
from shardwright.interrupts import check
from shardwright.recipes import Recipe
from shardwright.storage import files
from shardwright.storage.urls import Location, Url
from shardwright.store import records
from shardwright.store.records import BadRecordError
from shardwright.summary import Count

_PATH_FIELDS = ("image_path", "file_name")
CAPTION = "caption"
_CAPTION_FIELDS = (CAPTION, "text")
_ID = "image_id"

Row = dict[str, Any]  # the columns of an image, by the record field that they become


class CaptionError(ValueError):
    """An image without a usable caption; ``args`` are the reason's name and a detail."""


@dataclass(frozen=True)
class Captions:
    """The captions of a file, by the name of the image file and then by its path."""

    path: Location
    root: str  # the folder of the images
    by_name: dict[str, dict[str, bytes]]  # rows as JSON, which takes less memory
    useless: dict[str, list[str]] = field(default_factory=dict)  # by reason, as rows name images
    _met: set[str] = field(default_factory=set)  # paths in rows that match an image

    def of(self, source: Source, root: str | None = None) -> Row:
        """Find the row of an image below a folder, if it is another; empty if there is none."""
        row = self._find(source, root)
        row.pop(_ID, None)
        return row

    def image_id(self, source: Source, root: str | None = None) -> str | None:
        """Find the id that the row of an image gives it."""
        return self._find(source, root).get(_ID)

    def meet(self, path: str, root: str | None = None) -> set[bytes]:
        """Find the rows that match an image, of which there should be one, and count them as used.

        A row belongs to an image when the one path ends with the other: rows may be relative to
        any folder above the image, and the images may have moved since they were written.
        """
        rows = self.by_name.get(os.path.basename(path))
        if rows is None:
            return set()
        absolute = os.path.abspath(path)
        near = [name for name in rows if _ends_with(absolute, name)]
        if near:  # the longest path is the most exact
            self._met.update(near)
            return {rows[max(near, key=len)]}
        within = os.path.relpath(path, self.root if root is None else root)
        far = [name for name in rows if _ends_with(name, within)]
        self._met.update(far)
        return {rows[name] for name in far}

    def _find(self, source: Source, root: str | None) -> Row:
        found = self.meet(source.path, root)
        if len(found) > 1:
            raise CaptionError("caption_ambiguous", "several rows of the captions match it")
        return _row(found.pop()) if found else {}

    def unused(self) -> dict[str, Count]:
        """Count the rows that no image uses, after ``of`` or ``meet`` for every image."""
        strange = [path for rows in self.by_name.values() for path in rows if path not in self._met]
        reasons = {"no_such_image": strange, **self.useless}
        return {why: Count(len(paths), paths[0]) for why, paths in reasons.items() if paths}


def read(path: Location, root: Location, recipe: Recipe) -> Captions:
    """Read a JSONL or CSV of image paths and captions; of two rows for one path the later wins.

    A row with none of the texts that the recipe needs is not used.
    """
    fix = "give --captions a JSONL or CSV file"
    if not path.is_file():
        if path.is_dir():
            raise UsageError("is a folder", path=path, fix=fix)
        raise InputMissingError(files.absence(path), path=path, fix=fix)
    captions = Captions(path, str(root), {})
    ours = own_fields(recipe)
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _jsonl_rows(path)
    for number, row in rows:
        check()
        image = _first(row, _PATH_FIELDS)
        if not isinstance(image, str) or not image:
            needed = f"{' or '.join(_PATH_FIELDS)} and {' or '.join(_CAPTION_FIELDS)}"
            what, fix = f"line {number}: names no image", f"each row needs {needed}"
            raise UsageError(what, path=path, fix=fix)
        image = os.path.normpath(image)
        columns, fault = divide(row, recipe, ours)
        # A row may also be there only for its id.
        named = {_ID: str(row[_ID])} if recipe.ids == "captions" and row.get(_ID) else {}
        if fault is not None and not named:
            captions.useless.setdefault(fault, []).append(image)
            continue
        found = msgspec.json.encode(columns | named)
        same_name = captions.by_name.setdefault(os.path.basename(image), {})
        if same_name.get(image, found) != found:
            captions.useless.setdefault("repeated", []).append(image)
        same_name[image] = found
    return captions


def own_fields(recipe: Recipe) -> set[str]:
    """Name the fields of a row that are never a user's own column."""
    return {*records.own_fields(recipe), *_PATH_FIELDS}


def divide(row: Row, recipe: Recipe, ours: Collection[str]) -> tuple[Row, str | None]:
    """Give the columns of a row: its usable texts, and then all that are not ``ours``.

    Then name what is wrong if it has none of the texts that the recipe needs. The texts are taken
    out of the row.
    """
    caption = next((name for name in _CAPTION_FIELDS if row.get(name)), None)
    if caption is not None:
        row[CAPTION] = row.pop(caption)
    texts = {name: row.pop(name, None) for name in dict.fromkeys((CAPTION, *recipe.texts))}
    usable = {n: t.strip() for n, t in texts.items() if isinstance(t, str) and t.strip()}
    useless = recipe.texts and usable.keys().isdisjoint(recipe.texts)
    fault = _fault(texts[recipe.texts[0]]) if useless else None
    return usable | {n: v for n, v in row.items() if n not in ours}, fault  # null clears a column


def _row(data: bytes) -> Row:
    found: Row = msgspec.json.decode(data)
    return found


def beside(source: Source) -> str | None:
    """Read the caption in the text beside an image; None if there is none."""
    if not source.has_sidecar:
        return None
    place = source.text or source.sidecar
    try:
        if not places.is_regular(place):
            raise CaptionError("caption_unreadable", f"{place}: not a regular file")
        # It also makes all line ends alike.
        caption = TextIOWrapper(BytesIO(places.read(place)), "utf-8-sig").read().strip()
    except UnicodeDecodeError:
        raise CaptionError("caption_not_utf8", f"{place} is not UTF-8 text") from None
    except OSError as error:
        raise CaptionError("caption_unreadable", f"{place}: {error.strerror}") from None
    return caption or None


def _opened(path: Location) -> IO[bytes]:
    return BytesIO(path.read_bytes()) if isinstance(path, Url) else regular.opened(path)


def _jsonl_rows(path: Location) -> Iterator[tuple[int, dict[str, Any]]]:
    with files.explained(path), _opened(path) as file:
        for line in records.lines(file):
            try:
                yield line.number, records.parse(line.data)
            except BadRecordError as error:
                what = f"line {line.number}: {error.reason.replace('_', ' ')}"
                raise UsageError(what, path=path, fix="fix the line") from None


def _csv_rows(path: Location) -> Iterator[tuple[int, dict[str, Any]]]:
    ended = 0  # the last line of the last complete row: an unclosed quote begins on the next
    try:
        with files.explained(path), _opened(path) as file:
            text = TextIOWrapper(file, "utf-8-sig", newline="")
            reader = csv.DictReader(text, strict=True)
            if reader.fieldnames:
                ended = reader.line_num
            for row in reader:
                ended = reader.line_num
                if None in row:  # where DictReader puts the cells without a name
                    what = f"line {ended}: has more cells than the first line"
                    fix = "put quotes around a caption with commas"
                    raise UsageError(what, path=path, fix=fix)
                yield ended, row
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", path=path, fix="save it as UTF-8") from None
    except csv.Error as error:
        raise UsageError(f"line {ended + 1}: {error}", path=path, fix="fix the line") from None


def _first(row: dict[str, Any], fields: Iterable[str]) -> object:
    return next((row[name] for name in fields if row.get(name)), None)


def _fault(caption: object) -> str:
    """Name what is wrong with a caption."""
    if caption is None or isinstance(caption, str):
        return "no_caption"
    return "caption_is_list" if isinstance(caption, list) else "caption_not_string"


def _ends_with(path: str, tail: str) -> bool:
    return path == tail or path.endswith("/" + tail)
