"""See what is in a store or in shards: ``look``. The last step, for people.

A source (a store, or shards) becomes a table; a viewer answers what the page asks; a server passes
it on. The report and the terminal show the same values.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright import interrupts
from shardwright.entry import entry
from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Lines, Progress
from shardwright.summary import Summary
from shardwright.validate import as_text, integer, place_or_none

if TYPE_CHECKING:
    from shardwright.looking.sources import Source
    from shardwright.looking.viewer import Viewer

__all__ = ["LookSummary", "look"]

_SAMPLES = 48  # in a report
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")

StrPath = str | os.PathLike[str]


@dataclass
class LookSummary(Summary):
    """What ``look`` found, wrote or showed."""

    path: str
    kind: str  # "store" or "shards"
    samples: int
    attention: list[str] = field(default_factory=list)
    report: str | None = None  # the file that was written,
    shown: int = 0  # and how many samples it shows
    duplicates: str | None = None  # the file that was written,
    groups: int = 0  # of samples that are identical files or nearly alike,
    listed: int = 0  # samples in the file: all but the first of each group
    identical: int = 0  # of those, how many are identical files
    vector: str | None = None  # the component by which images were compared; None: only files were
    threshold: float | None = None  # the least cosine
    other_vectors: list[str] = field(default_factory=list)  # components that may be one too
    unknown_files: int = 0  # samples of which no hash of the file is on record
    in_parts: int = 0  # groups that are in several parts of a split
    approximate: bool = False  # whether some may be missing in it
    sample: dict[str, Any] | None = None  # the one that --id names
    saved: str | None = None  # the file with its picture,
    saved_latent: bool = False  # or with its latent as a picture, because there is no image
    seconds: float = 0.0


@entry
def look(
    path: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    images: StrPath | None = None,
    compare: StrPath | None = None,
    decode: bool = False,
    id: str | None = None,  # noqa: A002 - named like its flag
    save: StrPath | None = None,
    report: StrPath | None = None,
    samples: int | None = None,
    duplicates: StrPath | None = None,
    threshold: float | None = None,
    component: str | None = None,
    browser: bool = True,
    port: int | None = None,
    progress: Progress | None = None,
) -> LookSummary:
    """Show a store or shards in a browser, until it is interrupted.

    Arguments are named like the flags of ``shardwright look``. ``id``, ``report`` and
    ``duplicates`` show or write one thing instead, and return. The data is only read.
    """
    # Here, so that importing the package and printing --help are quick.
    from shardwright.comparing.copies import named_vector
    from shardwright.deriving.images import strict
    from shardwright.looking.duplicates import as_cosine, write_groups
    from shardwright.looking.pictures import Previews
    from shardwright.looking.report import write_report
    from shardwright.looking.samples import show
    from shardwright.looking.viewer import Viewer

    # Before anything is read, which may take a while.
    started = time.monotonic()
    tasks = {"--id": id, "--report": report, "--duplicates": duplicates}
    given = [name for name, value in tasks.items() if value is not None]
    if save is not None and id is None:
        raise UsageError("--save without --id", fix="name the sample with --id")
    if threshold is not None and duplicates is None:
        raise UsageError("--threshold without --duplicates", fix="on the page, move the slider")
    if component is not None and id is not None:
        raise UsageError("--component with --id", fix="leave it out: nothing is compared")
    if samples is not None and report is None:
        raise UsageError("--samples without --report", fix="the page shows all of them")
    if compare is not None and given:
        raise UsageError(f"--compare with {given[0]}", fix="compare on the page, without it")
    picture, page = _file("--save", save, "png"), _file("--report", report, "html")
    table, least = _file("--duplicates", duplicates, "jsonl"), as_cosine(threshold)
    count = _SAMPLES if samples is None else integer("--samples", samples)
    port = None if port is None else integer("--port", port)
    folder, reporter = place_or_none("--images", images), progress or Progress()
    if folder is not None and not folder.is_dir():
        fix = "give the folder that holds the images now"
        raise InputMissingError("--images: no such folder", path=folder, fix=fix)
    with strict():
        source = open_source("path", path, recipe, reporter)
        if component is not None:
            source.vector = named_vector(source.recipe, as_text("--component", component))
        _require_outside(source, picture, page, table)
        pictures = Previews(source, folder, decode=decode)
        summary = LookSummary(source.name, source.kind, len(source.table.ready))
        if id is not None:
            show(pictures, id, picture, summary)
        if table is not None:
            write_groups(source, table, least, summary, reporter)
        if page is not None:
            write_report(pictures, page, count, summary, reporter)
        if not given:
            other = None
            if compare is not None:
                there = open_source("--compare", compare, None, reporter)
                other = Previews(there, folder, decode=decode)
            # Also a script that shows no progress needs the address.
            _serve(Viewer(pictures, other), port, browser, progress or Lines())
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _file(flag: str, given: object, end: str) -> Path | None:
    """Give the file to write, whose name must have this end."""
    path = place_or_none(flag, given)
    if path is None:
        return None
    if path.suffix.lower() != f".{end}":
        article = "an" if end == "html" else "a"
        raise UsageError(f"{flag}: not {article} .{end} file", path=path, fix=f"name it FILE.{end}")
    if not path.parent.is_dir():
        raise InputMissingError(f"{flag}: no such folder", path=path.parent, fix="make it first")
    return path


def _require_outside(source: Source, *files: Path | None) -> None:
    """Raise if a file would be written into the data."""
    data = Path(source.name).resolve()
    for file in files:
        if file is not None and data in file.resolve().parents:
            fix = "give a file outside of it"
            raise UsageError(f"is inside of {source.name}", path=file, fix=fix)


def open_source(flag: str, path: object, recipe: object, progress: Progress) -> Source:
    """Open a store, a shard folder, a split folder or a URL."""
    from shardwright.looking.shard_source import open_shards
    from shardwright.looking.store_source import StoreSource
    from shardwright.storage.fetched import folder_at
    from shardwright.store.store import Store, find_recipe, is_store
    from shardwright.verifying import require_folder, shard_folders

    file = find_recipe(recipe)
    location = file.paths["store"] if path is None else as_text(flag, path)
    folder = Path(location)
    if folder.exists() or folder_at(location).path is not None:
        require_folder(folder)
        if is_store(folder):
            return StoreSource(Store.at(folder, given=file), progress)
        shard_folders(folder)
    return open_shards(location, progress)


def _has_screen() -> bool:
    """Whether a browser can open a window; one for the terminal would be in our way."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _SCREENS)


def _serve(viewer: Viewer, port: int | None, browser: bool, progress: Progress) -> None:
    """Serve until a signal comes."""
    import threading
    import webbrowser

    from shardwright.looking.server import open_server

    with open_server(viewer, port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        progress.close()
        progress.say(f"look at {server.url} (Ctrl-C ends it)")
        if browser and _has_screen():
            webbrowser.open(server.url)
        try:
            while True:
                interrupts.check()
                time.sleep(interrupts.POLL)
        finally:
            server.shutdown()
