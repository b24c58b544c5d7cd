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


def with_flags(
    way: str, settings: PackSettings | None, lists: Location | None, *, can_replace: bool
) -> str:
    """Spell a way of writing all of a folder again, with the flags that lose nothing.

    Where nothing can be replaced, it is written to another folder, which keeps nothing. ``lists``
    is the folder that lists of ids are named from; None if it is not known. The groups of a split
    at a URL have an absolute path.
    """
    if can_replace:
        return with_layout(way, settings)
    flags = settings.flags(lists or Path(), Path()) if settings else []
    if settings and lists is None:
        named = [n for n in CONDITIONS if isinstance(getattr(settings, n), IdsFile)]
        others = msgspec.structs.replace(settings, **dict.fromkeys(named))
        files = [word for name in named for word in (CONDITIONS[name], "FILE")]
        flags = [*others.flags(Path(), Path()), *files]
    return " ".join(["to another URL with" if flags else "to another URL", *map(quoted, flags)])
