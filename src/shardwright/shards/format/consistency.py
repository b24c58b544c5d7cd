"""Whether what a manifest says adds up, and its runs agree with one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.progress import quantity
from shardwright.shards.format.manifest import Manifest, Run, ShardEntry
from shardwright.shards.format.names import bucket_folder
from shardwright.store import provenance


def contradictions(whole: Manifest) -> Iterator[str]:
    """Find what a manifest says that cannot be, whatever the shards hold."""
    for entry in whole.shards:
        if entry.path.partition("/")[0] != bucket_folder(entry.bucket):
            yield f"says that the bucket of {entry.path} is {entry.bucket}"
    by_run = whole.by_run()
    for number, run in enumerate(whole.runs):
        entries = by_run.get(number, [])
        # Only a run that is no append can take whole buckets from those before it.
        reduced = not all(later.append for later in whole.runs[number + 1 :])
        if not _adds_up(run, entries, reduced):
            listed = sum(entry.samples for entry in entries)
            yield (
                f"run {number + 1} says that it packed {_packed(run.samples, run.shards, 'into')}, "
                f"and the manifest lists {_packed(listed, len(entries), 'in')}"
            )
        ready, skipped = run.ready_records, run.skipped_incomplete
        if run.total_records != ready + skipped:
            yield (
                f"run {number + 1} says {quantity(run.total_records, 'records')}, of which "
                f"{ready:,} ready and {skipped:,} skipped"
            )


def _adds_up(run: Run, entries: list[ShardEntry], reduced: bool) -> bool:
    """Whether the shards of a run are as many as it says, or fewer where some were replaced."""
    shards = run.shards - len(entries)
    samples = run.samples - sum(entry.samples for entry in entries)
    if not reduced:
        return shards == samples == 0
    return 0 <= shards <= samples <= shards * run.settings.shard_size


def _packed(samples: int, shards: int, how: str) -> str:
    return f"{quantity(samples, 'samples')} {how} {quantity(shards, 'shards')}"


def mixed_runs(whole: Manifest) -> Iterator[str]:
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
                    f"{_run(other, by_run[other])}: {listed}"
                )


def other_settings(whole: Manifest, entries: Mapping[str, provenance.Entry]) -> str:
    """Say how a store was made otherwise than the arrays in the shards; "" if it was not."""
    now = {name: entry.settings for name, entry in entries.items()}
    runs = (whole.runs[number] for number in whole.by_run())
    listed = (provenance.differences(provenance.settings_in(r.provenance), now)[1] for r in runs)
    return next(filter(None, listed), "")


def unknown_settings(whole: Manifest, entries: Mapping[str, provenance.Entry]) -> list[str]:
    """Name the components of which only the shards or only a store say how they were made."""
    runs = (whole.runs[number] for number in whole.by_run())
    packed = {name for run in runs for name in provenance.settings_in(run.provenance)}
    return sorted(packed ^ entries.keys())


def _run(number: int, entries: list[ShardEntry]) -> str:
    count = quantity(len(entries), "shards")
    return f"run {number + 1} ({count}, for example {entries[0].path})"
