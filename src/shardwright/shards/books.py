"""Whether the runs of a manifest agree with one another."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.progress import quantity
from shardwright.shards.manifest import Manifest, ShardEntry
from shardwright.store import provenance
from shardwright.store.listing import shown


def mixed(whole: Manifest) -> Iterator[str]:
    """Find runs whose arrays were made otherwise than those of the first run that knows."""
    first: dict[str, tuple[int, provenance.Settings]] = {}  # by component
    by_run = whole.by_run()
    for number, entries in by_run.items():
        now = provenance.settings_in(whole.runs[number].provenance)
        for name, settings in now.items():
            first.setdefault(name, (number, settings))
        for other in sorted({first[name][0] for name in now}):
            before = {name: settings for name, (run, settings) in first.items() if run == other}
            changed, listed = provenance.differences(before, now)
            if changed:
                yield (
                    f"{_run(number, entries)} packed other arrays than "
                    f"{_run(other, by_run[other])}: {shown(listed)}"
                )


def _run(number: int, entries: list[ShardEntry]) -> str:
    count = quantity(len(entries), "shards")
    return f"run {number + 1} ({count}, for example {shown(entries[0].path)})"
