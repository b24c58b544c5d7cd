"""What must be given to write all of a folder again as it was, for advice that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from shardwright.shards.format.manifest import CONDITIONS, IdsFile, Manifest, PackSettings
from shardwright.storage.urls import Location
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


def to_another_url(settings: PackSettings | None, folder: Location | None) -> str:
    """Spell how to write all of a folder again where nothing is replaced, or kept."""
    flags = elsewhere(settings, folder)
    return "to another URL" + (f" with {flags}" if flags else "")


def elsewhere(settings: PackSettings | None, folder: Location | None) -> str:
    """Spell all flags, for another folder, which keeps nothing.

    ``folder`` is the one that lists of ids are named from; None if it is not known. The groups of a
    split at a URL have an absolute path.
    """
    if settings is None:
        return ""
    flags = settings.flags(folder or Path(), Path())
    if folder is None:
        lists = {n: None for n in CONDITIONS if isinstance(getattr(settings, n), IdsFile)}
        files = [word for name in lists for word in (CONDITIONS[name], "FILE")]
        flags = [*msgspec.structs.replace(settings, **lists).flags(Path(), Path()), *files]
    return " ".join(map(quoted, flags))
