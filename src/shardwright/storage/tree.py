"""All files below a folder, of this machine or at a URL, as they are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from shardwright.errors import refusal
from shardwright.interrupts import check
from shardwright.storage.urls import Location, Url


class Found(NamedTuple):
    """A file; or a folder that cannot be read."""

    path: str
    state: tuple[int, int] | None = None  # its size and time, where a listing has them
    fault: str | None = None  # of a folder: why it cannot be read


def file(path: Location) -> Found | None:
    """Give a file, if there is one."""
    if isinstance(path, Url):
        there = path.head()
        return Found(path.text, (there.size, there.mtime_ns)) if there else None
    return Found(str(path)) if path.is_file() else None


def walk(folder: Location, warn: Callable[[str], None]) -> Iterator[Iterable[Found]]:
    """Give all files below a folder, those of one folder together, but none that is hidden.

    Links to files are followed. Those to folders are skipped with a warning, because they may lead
    in circles.
    """
    if isinstance(folder, Url):
        yield _listed(folder)
    else:
        yield from _scanned(folder, warn)


def _listed(url: Url) -> Iterator[Found]:
    start = len(url.key) + 1 if url.key else 0
    for at, found in url.walk():
        check()
        # A key that ends with a slash stands for a folder.
        if not found.key.endswith("/") and f"/{found.key[start:]}".find("/.") < 0:
            yield Found(at.text, (found.size, found.mtime_ns))


def _scanned(folder: Path, warn: Callable[[str], None]) -> Iterator[list[Found]]:
    pending = [str(folder)]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(current) as listed:
                entries = list(listed)
        except OSError as error:
            if current == str(folder):
                if not folder.is_dir():
                    return
                raise refusal(folder, error) from error
            yield [Found(current, fault=error.strerror or str(error))]
            continue
        files: list[Found] = []
        for entry in entries:
            check()
            if entry.name.startswith("."):
                continue
            if not _is_folder(entry):
                files.append(Found(entry.path))
            elif entry.is_symlink():
                warn(f"{entry.path}: skipped, because it is a link to a folder")
            else:
                pending.append(entry.path)
        yield files


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a broken link; reading it gives the reason
        return False
