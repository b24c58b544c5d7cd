"""The captions a user gives in a file, and those that lie beside their images."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.deriving.sources import Source, is_regular
from shardwright.deriving.summary import UnusedRows
from shardwright.errors import InputMissingError, UsageError
from shardwright.interrupts import check
from shardwright.storage import files
from shardwright.store import records
from shardwright.store.records import BadRecordError

_PATH_FIELDS = ("image_path", "file_name")
_CAPTION_FIELDS = ("caption", "text")


class CaptionError(ValueError):
    """An image whose caption cannot be told; ``args`` are the reason's name and a detail."""


@dataclass(frozen=True)
class Captions:
    """The captions of a file, by the name of the image file and then by its whole path."""

    path: Path
    root: str  # the folder of the images
    by_name: dict[str, dict[str, str]]
    useless: dict[str, list[str]] = field(default_factory=dict)  # by reason, as rows name images
    _met: set[str] = field(default_factory=set)  # the paths that some image could be

    def of(self, source: Source) -> str | None:
        """Find the caption of an image.

        A row belongs to an image when the one path ends with the other: rows may be relative to
        any folder above the image, and the whole tree may have moved since they were written.
        """
        rows = self.by_name.get(os.path.basename(source.path))
        if rows is None:
            return None
        whole = os.path.abspath(source.path)
        within = os.path.relpath(source.path, self.root)
        near = [path for path in rows if _ends_with(whole, path)]
        if near:  # the longest says most
            self._met.update(near)
            return rows[max(near, key=len)]
        far = [path for path in rows if _ends_with(path, within)]
        self._met.update(far)
        different = {rows[path] for path in far}
        if len(different) > 1:
            raise CaptionError("caption_ambiguous", "several rows of the captions could be its own")
        return different.pop() if different else None

    def unused(self) -> dict[str, UnusedRows]:
        """Sum up the rows that came to nothing, once every image has been asked for."""
        strange = [path for rows in self.by_name.values() for path in rows if path not in self._met]
        reasons = {"no_such_image": strange, **self.useless}
        return {
            reason: UnusedRows(len(paths), paths[0]) for reason, paths in reasons.items() if paths
        }


def read(path: Path, root: Path) -> Captions:
    """Read a JSONL or CSV of image paths and captions; of two rows for one path the later wins."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; --captions is a JSONL or CSV file")
    if not path.is_file():
        raise InputMissingError(f"{path}: no such file; --captions is a JSONL or CSV file")
    captions = Captions(path, str(root), {})
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _jsonl_rows(path)
    for number, row in rows:
        check()
        image = _first(row, _PATH_FIELDS)
        if not isinstance(image, str) or not image:
            raise UsageError(
                f"{path}, line {number}: names no image; each row needs "
                f"{' or '.join(_PATH_FIELDS)} and {' or '.join(_CAPTION_FIELDS)}"
            )
        image = os.path.normpath(image)
        caption = _first(row, _CAPTION_FIELDS)
        if not isinstance(caption, str) or not caption.strip():
            captions.useless.setdefault(_fault(caption), []).append(image)
            continue
        same_name = captions.by_name.setdefault(os.path.basename(image), {})
        if same_name.get(image, caption.strip()) != caption.strip():
            captions.useless.setdefault("repeated", []).append(image)
        same_name[image] = caption.strip()
    return captions


def beside(source: Source) -> str | None:
    """Read the caption in the text file beside an image; None if there is none."""
    if not source.has_sidecar:
        return None
    try:
        if not is_regular(source.sidecar):
            raise CaptionError("caption_unreadable", f"{source.sidecar}: not a regular file")
        caption = Path(source.sidecar).read_text("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise CaptionError("caption_not_utf8", f"{source.sidecar} is not UTF-8 text") from None
    except OSError as error:
        raise CaptionError("caption_unreadable", f"{source.sidecar}: {error.strerror}") from None
    return caption or None


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with files.explained(path), path.open("rb") as file:
        for line in records.lines(file):
            try:
                yield line.number, records.parse(line.data)
            except BadRecordError as error:
                what = error.reason.replace("_", " ")
                raise UsageError(f"{path}, line {line.number}: {what}; fix the line") from None


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    ended = 0  # the line of the last whole row: a quote left open runs on from the next
    try:
        with files.explained(path), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if reader.fieldnames:
                ended = reader.line_num
            for row in reader:
                ended = reader.line_num
                if None in row:  # where DictReader puts the cells that have no name
                    raise UsageError(
                        f"{path}, line {ended}: has more cells than the first line; put quotes "
                        "around a caption with commas"
                    )
                yield ended, row
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise UsageError(f"{path}, line {ended + 1}: {error}; fix the line") from None


def _first(row: dict[str, Any], fields: Iterable[str]) -> object:
    return next((row[field] for field in fields if row.get(field)), None)


def _fault(caption: object) -> str:
    """Name what is wrong with a caption."""
    if caption is None or isinstance(caption, str):
        return "no_caption"
    return "caption_is_list" if isinstance(caption, list) else "caption_not_string"


def _ends_with(path: str, tail: str) -> bool:
    return path == tail or path.endswith("/" + tail)
