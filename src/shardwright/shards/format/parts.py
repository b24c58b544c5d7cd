"""A split folder: below it are shard folders, one for each part."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from shardwright.errors import DamageError, UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes.split import Split
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import PackSettings

_NOTES = (manifest.MANIFEST_NAME, manifest.UNFINISHED_NAME)


def is_packed(folder: Path) -> bool:
    """Whether a run of pack has begun in a folder."""
    return any((folder / STATE_FOLDER / name).is_file() for name in _NOTES)


def packed_below(output: Path) -> list[Path]:
    """Find the shard folders directly below a folder, finished or not."""
    names = sorted(os.listdir(output)) if output.is_dir() else []
    return [output / name for name in names if is_packed(output / name)]


def last_settings(folder: Path) -> PackSettings | None:
    """Give the settings of the last run in a shard folder, which may not have finished."""
    if (unfinished := manifest.load_unfinished(folder)) is not None:
        return unfinished.settings
    done = manifest.load_manifest(folder)
    return done.runs[-1].settings if done else None


def recorded_splits(output: Path) -> dict[str, Split]:
    """Find the parts below a folder, each with its split; a damaged manifest names none."""
    found: dict[str, Split] = {}
    for folder in packed_below(output):
        with suppress(DamageError):
            settings = last_settings(folder)
            if settings is not None and settings.split and settings.part == folder.name:
                found[folder.name] = settings.split
    return found


def parts_of(output: Path) -> dict[str, Path]:
    """Give the folders of the parts of a split folder by name; none if it is not one.

    A part whose manifest is damaged counts if another part names it.
    """
    splits = recorded_splits(output)
    names = dict.fromkeys(name for split in splits.values() for name in (*split.names, *splits))
    return {name: output / name for name in names if is_packed(output / name)}


def top_folder(folder: Path, settings: PackSettings) -> Path:
    """Give the folder to pack into, which for a part is that of the split."""
    return folder.parent if settings.part and settings.part == folder.name else folder


def require_no_parts(folder: Path) -> None:
    """Raise if a folder is split, for a command that takes one part."""
    if not is_packed(folder) and (found := parts_of(folder)):
        fix = f"give {' or '.join(map(str, found.values()))}"
        raise UsageError(f"is split into {', '.join(found)}", path=folder, fix=fix)
