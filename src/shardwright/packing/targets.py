"""The shard folders that a run packs into: one, or one for each part of a split."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import DamageError, UsageError
from shardwright.packing.start import existing
from shardwright.recipes.split import Split
from shardwright.shards.format import parts
from shardwright.shards.format.manifest import PackSettings
from shardwright.shards.format.names import existing_buckets
from shardwright.store.commands import quoted


@dataclass(frozen=True)
class Target:
    """A shard folder, and the part of a split that belongs there."""

    folder: Path
    part: str | None = None

    @property
    def prefix(self) -> str:
        """Give what is before the name of a shard in a report of all targets."""
        return f"{self.part}/" if self.part else ""


def find_targets(
    output: Path, settings: PackSettings, way: str | None
) -> tuple[Split | None, list[Target]]:
    """Find the folders to pack into, by the split that is asked for or was recorded before.

    Raise if that would move samples from one part to another.
    """
    own = None
    with suppress(DamageError):  # reported when the run starts; --overwrite is the way out
        own = parts.last_settings(output)
    if own is not None and own.part is not None:
        _require_same(output, settings.split, own.split)
        return own.split, [Target(output, own.part)]
    if own is not None or existing(output, existing_buckets(output)):
        if settings.split is not None:
            what = "holds shards that are not split, so nothing was written"
            fix = "give another --output-dir, or remove these shards"
            raise UsageError(what, path=output, fix=fix)
        return None, [Target(output)]
    try:
        before = parts.recorded_splits(output)
    except DamageError:
        if way != "overwrite" or settings.split is None:
            raise
        before = {}
    split = settings.split or next(iter(before.values()), None)
    if split is None:
        return None, [Target(output)]
    if way != "overwrite" or settings.split is None or settings.buckets:
        for each in before.values():
            _require_same(output, split, each)
    # Also parts that are no more: their shards are removed, as their samples are in others now.
    names = dict.fromkeys((*split.names, *before))
    return split, [Target(output / name, name) for name in names]


def _require_same(output: Path, split: Split | None, before: Split | None) -> None:
    if split is None or split == before:
        return
    was = " ".join(map(quoted, before.flags())) if before else "no --split"
    raise UsageError(
        f"was packed with {was}, so nothing was written: another split would move samples "
        "between its parts",
        path=output,
        fix=f"give {was}, or pack all of it again with --overwrite and --split",
    )
