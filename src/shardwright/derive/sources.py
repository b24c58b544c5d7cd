"""The images to derive from: every picture file below a folder, in an order that never varies."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import InputMissingError, StorageError, UsageError
from shardwright.progress import Progress
from shardwright.store.records import image_id_of, image_id_problem

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SIDECAR = ".txt"


@dataclass(frozen=True, slots=True)
class Source:
    """One image file."""

    image_id: str
    path: str  # as it goes into the record
    has_sidecar: bool  # a text file of the same name lies beside it

    @property
    def sidecar(self) -> str:
        """Name that text file."""
        return os.path.splitext(self.path)[0] + _SIDECAR


def find(folder: Path, progress: Progress) -> list[Source]:
    """Find every image below a folder, in the order of their paths.

    Links to files are followed. Hidden files and folders are passed over, and so, with a warning,
    are links to folders, which might lead in circles.
    """
    if folder.is_file():
        raise UsageError(f"{folder}: is a file; give the folder of your images")
    if not folder.is_dir():
        raise InputMissingError(f"{folder}: no such folder; give the folder of your images")
    progress.phase("look for images", 0, "images")
    found = sorted(_walk(folder, progress), key=lambda source: source.path)
    if not found:
        listed = ", ".join(suffix[1:] for suffix in SUFFIXES)
        raise InputMissingError(f"{folder}: holds no images; looked for {listed}")
    return found


def _walk(folder: Path, progress: Progress) -> Iterator[Source]:
    pending = [str(folder)]
    while pending:
        current = pending.pop()
        images, texts = [], set()
        for entry in _entries(current):
            name = entry.name
            if name.startswith("."):
                continue
            if entry.is_dir():
                if entry.is_symlink():
                    progress.warn(f"{entry.path}: a link to a folder is not followed")
                else:
                    pending.append(entry.path)
                continue
            stem, suffix = os.path.splitext(name)
            if suffix.lower() in SUFFIXES:
                images.append(entry.path)
            elif suffix == _SIDECAR:
                texts.add(stem)
        for path in images:
            stem = image_id_of(path)
            yield Source(stem, path, stem in texts)
        progress.advance(len(images))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}") from error


def problems(sources: list[Source]) -> dict[int, tuple[str, str]]:
    """Find the sources that no sample can be made of, with the reason and what to know of it."""
    counts = Counter(source.image_id for source in sources)
    places: dict[str, list[str]] = {image_id: [] for image_id, count in counts.items() if count > 1}
    for source in sources:
        if source.image_id in places:
            places[source.image_id].append(source.path)
    found = {}
    for number, source in enumerate(sources):
        if not _is_text(source.path) or image_id_problem(source.image_id):
            found[number] = ("image_id_invalid", "its name cannot be written in a record")
        elif source.image_id in places:
            others = [path for path in places[source.image_id] if path != source.path]
            found[number] = ("duplicate_id", f"{others[0]} has the same image_id")
    return found


def is_regular(path: str) -> bool:
    """Whether a path leads to a file proper: to open a pipe or a device may take forever."""
    return stat.S_ISREG(os.stat(path).st_mode)


def _is_text(path: str) -> bool:
    """Whether a path is Unicode, as JSON must be; file systems do not insist."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
