"""Checks of a manifest alone: whether its counts add up and its runs agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from msgspec import UNSET

from shardwright.progress import quantity
from shardwright.recipes import Recipe
from shardwright.recipes.compare import differences
from shardwright.shards.format.manifest import Manifest, ShardEntry
from shardwright.store import provenance


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Find statements of a manifest that are wrong whatever the shards hold."""
    by_run = manifest.by_run()
    for number, run in enumerate(manifest.runs):
        entries = by_run.get(number, [])
        listed = sum(entry.samples for entry in entries)
        shards, samples = run.shards - len(entries), run.samples - listed
        # Only a run that is not an append can replace shards of earlier runs.
        if all(later.append for later in manifest.runs[number + 1 :]):
            possible = shards == samples == 0
        else:  # a sync writes shards of earlier runs, with their size
            most = samples if run.sync else shards * run.settings.shard_size
            possible = 0 <= shards <= samples <= most
        if not possible:
            yield (
                f"run {number + 1} says that it packed {_packed(run.samples, run.shards)}, "
                f"but the manifest lists {_packed(listed, len(entries))}"
            )
        ready, skipped = run.ready_records, run.skipped_incomplete
        if run.total_records != ready + skipped:
            yield (
                f"run {number + 1} says {quantity(run.total_records, 'records')}, but "
                f"{ready:,} ready and {skipped:,} skipped"
            )


def _packed(samples: int, shards: int) -> str:
    return f"{quantity(samples, 'samples')} in {quantity(shards, 'shards')}"


def mixed_runs(manifest: Manifest) -> Iterator[str]:
    """Find runs whose arrays were made with other settings than those of an earlier run."""
    first: dict[str, tuple[int, provenance.Settings]] = {}  # by component
    by_run = manifest.by_run()
    for number, entries in by_run.items():
        now = provenance.settings_in(manifest.runs[number].provenance)
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


def other_recipe(manifest: Manifest, recipe: Recipe) -> str:
    """List what is different in the recipe of a store; "" if nothing is."""
    before = manifest.samples_of()
    if manifest.recipe is UNSET:  # then the provenance knows the fit
        before = replace(before, fit=recipe.fit)
    return "; ".join(differences(before, recipe))


def other_settings(manifest: Manifest, entries: Mapping[str, provenance.Entry]) -> str:
    """List the settings in which a store differs from the shards; "" if none does."""
    now = {name: entry.settings for name, entry in entries.items()}
    listed = (provenance.differences(made, now)[1] for made in _settings(manifest))
    return next(filter(None, listed), "")


def _settings(manifest: Manifest) -> Iterator[dict[str, provenance.Settings]]:
    """Give the settings of each run that has shards."""
    for number in manifest.by_run():
        yield provenance.settings_in(manifest.runs[number].provenance)


def other_kind(manifest: Manifest, recipe: Recipe, entries: Mapping[str, provenance.Entry]) -> str:
    """List why samples of a store must not be beside those of the shards; "" if they may be."""
    return other_recipe(manifest, recipe) or other_settings(manifest, entries)


def store_ids(manifest: Manifest) -> list[str]:
    """Give the known identities of the stores that the shards were packed from."""
    runs = (manifest.runs[number] for number in manifest.by_run())
    return list(dict.fromkeys(run.store_id for run in runs if run.store_id))


def unknown_settings(manifest: Manifest, entries: Mapping[str, provenance.Entry]) -> list[str]:
    """Name the components whose settings only the shards or only a store records."""
    return sorted({name for made in _settings(manifest) for name in made} ^ entries.keys())


def _run(number: int, entries: list[ShardEntry]) -> str:
    count = quantity(len(entries), "shards")
    return f"run {number + 1} ({count}, for example {entries[0].path})"
