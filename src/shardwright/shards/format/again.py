"""What must be given to write all of a folder again as it was, for advice that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shardwright.shards.format.manifest import Manifest, PackSettings
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
