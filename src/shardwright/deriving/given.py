"""The captions files of a run: one for all images, or several, each for the images of a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shardwright.deriving import captions
from shardwright.deriving.captions import CaptionRows, Captions, Row
from shardwright.deriving.sources import Source
from shardwright.recipes import Recipe
from shardwright.summary import Count


class Given:
    """The captions that a user has given, now or before; that of the nearest folder counts."""

    def __init__(self, files: Mapping[str, Path], sources: list[Source], recipe: Recipe) -> None:
        """Read the files, by the folders that they are for, and find the images of their rows."""
        nearest = sorted(files, key=len, reverse=True)
        self.parts = [captions.read(files[folder], folder, recipe) for folder in nearest]
        for part in self.parts:
            part.match_sources([source for source in sources if self._part(source) is part])

    def of(self, source: Source) -> Row:
        """Find the row of an image; empty if there is none."""
        part = self._part(source)
        return part.of(source) if part else {}

    def image_id(self, source: Source) -> str | None:
        """Find the id that the row of an image gives it."""
        part = self._part(source)
        return part.image_id(source) if part else None

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
            for reason, count in part.unused().items():
                found.setdefault(reason, Count(0, count.example)).count += count.count
        return found

    def _part(self, source: Source) -> Captions | None:
        """Find the file that is for an image: that of the nearest folder."""
        below = (part for part in self.parts if _is_below(source.path, part.root))
        return next(below, None)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))
