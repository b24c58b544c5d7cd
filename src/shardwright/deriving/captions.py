"""The captions a user gives in files, and those that lie beside their images.

A row of the file may have any columns: texts that components are made from, and others, which are
kept in the record.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import msgspec

from shardwright.deriving import caption_files
from shardwright.deriving.caption_files import GIVE, PATH_FIELDS
from shardwright.deriving.matching import Images, Matching, Named
from shardwright.deriving.sources import Source
from shardwright.errors import InputMissingError, UsageError
from shardwright.interrupts import check
from shardwright.recipes import Recipe
from shardwright.storage import extents, files, paths
from shardwright.storage.extents import Part
from shardwright.storage.urls import Location
from shardwright.store import records
from shardwright.summary import Count

CAPTION = "caption"
_CAPTION_FIELDS = (CAPTION, "text", "prompt")
_ID = "image_id"
RESERVED = frozenset({"__facts__", "__input__", "__left_out__"})  # fields of our own files
AMBIGUOUS = "caption_ambiguous"
# Bytes of a text file. A record is one line of at most records.LONGEST_LINE, and JSON may write a
# character in six.
_LONGEST = records.LONGEST_LINE // 8

Row = dict[str, Any]  # the columns of an image, by the record field that they become


class CaptionError(ValueError):
    """An image without a usable caption; ``args`` are the reason's name and a detail."""


@dataclass
class CaptionRows:
    """How many rows of a captions file are used, and how they name images."""

    file: str
    base: str  # where the paths of its rows begin; blank if they name no image
    rows_used: int
    rows_unused: int
    images_without_row: int


@dataclass
class Captions:
    """The captions of a file, by the paths in its rows."""

    path: Location
    root: str  # the folder of the images
    rows: dict[str, int]  # the number of the row, by its path
    data: list[bytes]  # the rows by their numbers, as JSON, which takes less memory
    total: int = 0  # all rows of the file
    useless: dict[str, Count] = field(default_factory=dict)  # by reason, as rows name images
    _matching: Matching = field(init=False)  # of rows and images, once these are known

    def match(self, images: Images) -> None:
        """Match rows to images; call it before the captions are asked for."""
        self._matching = Matching(self.path, self.rows, self.data, images)

    def match_sources(self, found: Sequence[Source]) -> None:
        """Match rows to the images below the folder."""
        self.match(lambda: (named(each, self.root) for each in found if not each.fault))

    def of(self, source: Source, root: str | None = None) -> Row:
        """Give the row of an image, or none; ``root`` is its folder, if not the one of all."""
        row = self._find(source, root)
        row.pop(_ID, None)
        return row

    def image_id(self, source: Source, root: str | None = None) -> str | None:
        """Find the id that the row of an image gives it."""
        return self._find(source, root).get(_ID)

    def _find(self, source: Source, root: str | None) -> Row:
        number = self._matching.number(named(source, self.root if root is None else root))
        if number is None:
            return {}
        if self._matching.is_shared(number):
            what = "its row in --captions has only a name, which other images have too"
            raise CaptionError(AMBIGUOUS, what)
        found: Row = msgspec.json.decode(self.data[number])
        return found

    def summed(self) -> CaptionRows:
        """Count the rows that are used, and the images that have none."""
        used = sum(self._matching.fault(number) is None for number in self.rows.values())
        return CaptionRows(
            file=str(self.path),
            base=self._matching.base,
            rows_used=used,
            rows_unused=self.total - used,
            images_without_row=self._matching.images_without,
        )

    def unused(self) -> dict[str, Count]:
        """Count the rows that no image uses, by reason."""
        found: dict[str, Count] = {}
        for path, number in self.rows.items():
            if (fault := self._matching.fault(number)) is not None:
                _add(found, fault, path)
        _add_all(found, self.useless)
        return found


class CaptionFiles:
    """The captions that a user has given, now or before; that of the nearest folder counts."""

    def __init__(self, files: Mapping[str, Path], sources: list[Source], recipe: Recipe) -> None:
        """Read the files, by the folders that they are for, and find the images of their rows."""
        nearest = sorted(files, key=len, reverse=True)
        self.parts = [read(files[folder], folder, recipe) for folder in nearest]
        for part in self.parts:
            part.match_sources([source for source in sources if self._part(source) is part])

    def of(self, source: Source) -> Row:
        """Find the row of an image; empty if there is none."""
        part = self._part(source)
        return part.of(source) if part else {}

    def image_id(self, source: Source) -> str | None:
        """Find the id that the row of an image gives it."""
        part = self._part(source)
        with suppress(CaptionError):  # reported as a failure
            return part.image_id(source) if part else None
        return None

    def summed(self) -> CaptionRows:
        """Count the rows that are used in all files."""
        parts = [part.summed() for part in self.parts]
        return CaptionRows(
            file=", ".join(part.file for part in parts),
            base=", ".join(dict.fromkeys(part.base for part in parts if part.base)),
            rows_used=sum(part.rows_used for part in parts),
            rows_unused=sum(part.rows_unused for part in parts),
            images_without_row=sum(part.images_without_row for part in parts),
        )

    def unused(self) -> dict[str, Count]:
        """Count the rows that no image uses, by reason."""
        found: dict[str, Count] = {}
        for part in self.parts:
            _add_all(found, part.unused())
        return found

    def _part(self, source: Source) -> Captions | None:
        """Find the file that is for an image: that of the nearest folder."""
        starts = ((part, os.path.join(part.root, "")) for part in self.parts)
        return next((part for part, start in starts if source.path.startswith(start)), None)


def named(source: Source, root: str) -> Named:
    """Give an image as rows may name it."""
    return Named(root, source.path, source.part.name if source.part else "")


def read(path: Location, root: Location | str, recipe: Recipe) -> Captions:
    """Read a file of image paths and captions; of two rows for one path the later wins.

    A row with none of the texts that the recipe needs is not used.
    """
    if not path.is_file():
        if path.is_dir():
            raise UsageError("is a folder", path=path, fix=GIVE)
        raise InputMissingError(files.absence(path), path=path, fix=GIVE)
    captions = Captions(path, str(root), {}, [])
    ours = own_fields(recipe)
    unit, rows = caption_files.rows(path, {*_CAPTION_FIELDS, *recipe.texts, *ours, _ID})
    images: list[str] = []
    slashes = False
    for number, row in rows:
        check()
        captions.total += 1
        image = next((row[name] for name in PATH_FIELDS if row.get(name)), None)
        if not isinstance(image, str) or not image:
            needed = f"{' or '.join(PATH_FIELDS)}, and caption, text or prompt"
            what, fix = f"{unit} {number}: names no image", f"each row needs {needed}"
            raise UsageError(what, path=path, fix=fix)
        if taken := RESERVED & row.keys():
            what = f"{unit} {number}: has a column {min(taken)}, a name that Shardwright uses"
            raise UsageError(what, path=path, fix="rename the column")
        slashes |= "/" in image
        columns, fault = divide(row, recipe, ours)
        # A row may also be there only for its id.
        own = {_ID: str(row[_ID])} if recipe.ids == "captions" and row.get(_ID) else {}
        if fault is not None and not own:
            _add(captions.useless, fault, image)
            continue
        images.append(image)
        captions.data.append(msgspec.json.encode(columns | own))
    for number, image in enumerate(images):
        place = paths.normal(image if slashes else image.replace("\\", "/"))
        if place in captions.rows:
            _add(captions.useless, "repeated", image)
            captions.data[captions.rows[place]] = b""
        captions.rows[place] = number
    return captions


def _add(counts: dict[str, Count], reason: str, example: str) -> None:
    counts.setdefault(reason, Count(0, example)).count += 1


def _add_all(counts: dict[str, Count], others: Mapping[str, Count]) -> None:
    for reason, other in others.items():
        counts.setdefault(reason, Count(0, other.example)).count += other.count


def own_fields(recipe: Recipe) -> set[str]:
    """Name the fields of a row that are never a user's own column."""
    return {*records.own_fields(recipe), *PATH_FIELDS}


def divide(row: Row, recipe: Recipe, ours: Collection[str]) -> tuple[Row, str | None]:
    """Give the columns of a row: its usable texts, and then all that are not ``ours``.

    Then name what is wrong if it has none of the texts that the recipe needs. The texts are taken
    out of the row.
    """
    # What a component is made from by its own name is not another name of the caption.
    names = (name for name in _CAPTION_FIELDS if name == CAPTION or name not in recipe.texts)
    caption = next((name for name in names if row.get(name)), None)
    if caption is not None:
        row[CAPTION] = row.pop(caption)
    texts = {name: row.pop(name, None) for name in dict.fromkeys((CAPTION, *recipe.texts))}
    usable = {n: t.strip() for n, t in texts.items() if isinstance(t, str) and t.strip()}
    useless = recipe.texts and usable.keys().isdisjoint(recipe.texts)
    fault = _fault(texts[recipe.texts[0]]) if useless else None
    return usable | {n: v for n, v in row.items() if n not in ours}, fault  # null clears a column


def beside(source: Source) -> str | None:
    """Read the caption in the text beside an image; None if there is none."""
    if not source.has_sidecar:
        return None
    place = source.text or source.sidecar
    if source.shares_text:
        raise CaptionError(*shared_text(source))
    try:
        if not extents.is_regular(place):
            raise CaptionError("caption_unreadable", f"{place}: not a regular file")
        is_part = isinstance(place, Part)
        data = extents.read(place) if is_part else extents.begin(place, _LONGEST + 1)
        if len(data) > _LONGEST:
            raise CaptionError("caption_too_large", f"{place} has more than {_LONGEST >> 20} MiB")
        # It also makes all line ends alike.
        caption = TextIOWrapper(BytesIO(data), "utf-8-sig").read().strip()
    except UnicodeDecodeError:
        raise CaptionError("caption_not_utf8", f"{place} is not UTF-8 text") from None
    except OSError as error:
        raise CaptionError("caption_unreadable", f"{place}: {error.strerror}") from None
    return caption or None


def shared_text(source: Source) -> tuple[str, str]:
    """Say why the text beside an image is not used: the reason's name and a detail."""
    return AMBIGUOUS, f"{source.sidecar} lies beside another image of the same name too"


def _fault(caption: object) -> str:
    """Name what is wrong with a caption."""
    if caption is None or isinstance(caption, str):
        return "no_caption"
    return "caption_is_list" if isinstance(caption, list) else "caption_not_string"
