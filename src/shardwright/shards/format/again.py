"""What must be given to write all of a folder again as it was, for advice that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from shardwright.layout import JSONL_NAME
from shardwright.shards.format.manifest import (
    CONDITIONS,
    IdsFile,
    Manifest,
    PackSettings,
    Run,
    Unfinished,
)
from shardwright.storage.urls import Location, joined
from shardwright.store.commands import quoted


def complete(last: PackSettings, done: Sequence[Manifest]) -> PackSettings:
    """Give the settings that write all of a folder again, or of its parts, at once.

    ``last`` are those of its last run; several runs may each have had buckets and a limit.
    """
    asked = [run.settings.buckets for each in done for run in each.runs] + [last.buckets]
    buckets = sorted({name for names in asked for name in names}) if all(asked) else []
    limit = last.limit
    if limit is not None:
        limit = max(limit, sum(entry.samples for each in done for entry in each.shards))
    return msgspec.structs.replace(last, part=None, buckets=buckets, limit=limit)


def with_layout(way: str, settings: PackSettings | None) -> str:
    """Spell a way of writing a folder again, with the flags that it does not keep by itself."""
    flags = settings.layout() if settings else []
    return " ".join([way, *map(quoted, flags)])


def overwriting(way: str, last: Run | Unfinished | None, store: Location | None) -> str:
    """Spell a way of writing a folder again as in its last run: with its JSONL and its layout."""
    way = " ".join([way, *map(quoted, _jsonl(last, store))])
    return with_layout(way, last.settings if last else None)


def to_another_url(last: Run | Unfinished | None, store: Location | None) -> str:
    """Spell how to write all of a folder again where nothing is replaced, or kept."""
    flags = elsewhere(last, store)
    return "to another URL" + (f" with {flags}" if flags else "")


def elsewhere(last: Run | Unfinished | None, store: Location | None) -> str:
    """Spell all flags, for another folder, which keeps nothing.

    ``store`` is the folder that lists of ids are named from, of a build the shard folder; None if
    it is not known. The groups of a split at a URL have an absolute path.
    """
    if last is None:
        return ""
    settings, files = last.settings, list[str]()
    if store is None:
        lists = {n: None for n in CONDITIONS if isinstance(getattr(settings, n), IdsFile)}
        settings = msgspec.structs.replace(settings, **lists)
        files = [word for name in lists for word in (CONDITIONS[name], "FILE")]
    flags = settings.flags(store or Path(), Path())
    return " ".join(map(quoted, [*_jsonl(last, store), *flags, *files]))


def _jsonl(last: Run | Unfinished | None, store: Location | None) -> list[str]:
    """Spell the JSONL of a run, unless it is the one that is packed where none is given."""
    if last is None or last.jsonl in (None, JSONL_NAME):
        return []
    return ["--jsonl", str(joined(store, last.jsonl) if store else f"DERIVED_DIR/{last.jsonl}")]
