"""A split folder: below it are shard folders, one for each part."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from shardwright.errors import DamageError, UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.recipes.split import Split
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import PackSettings
from shardwright.storage.urls import At, Location, names

_NOTES = (manifest.MANIFEST_NAME, manifest.UNFINISHED_NAME)


def is_packed(folder: Location) -> bool:
    """Whether a run of pack has begun in a folder."""
    return any((folder / STATE_FOLDER / name).is_file() for name in _NOTES)


def packed_below(output: Location) -> list[Location]:
    """Find the shard folders directly below a folder, finished or not."""
    return [output / name for name in names(output) if is_packed(output / name)]


def last_settings(folder: Location) -> PackSettings | None:
    """Give the settings of the last run in a shard folder, which may not have finished."""
    if (unfinished := manifest.load_unfinished(folder)) is not None:
        return unfinished.settings
    done = manifest.load_manifest(folder)
    return done.runs[-1].settings if done else None


def _parts_below(output: Location) -> dict[str, PackSettings]:
    """Find the folders below that are parts, with their last settings; damaged ones are none."""
    found: dict[str, PackSettings] = {}
    for folder in packed_below(output):
        with suppress(DamageError):
            settings = last_settings(folder)
            if settings is not None and settings.part == folder.name:
                found[folder.name] = settings
    return found


def recorded_splits(output: Location) -> dict[str, Split]:
    """Find the parts below a folder, each with its split; a damaged manifest names none."""
    below = _parts_below(output).items()
    return {name: settings.split for name, settings in below if settings.split}


def recorded_split(output: Location) -> Split | None:
    """Find the split of a folder, or that which it is a part of."""
    with suppress(DamageError):
        if (own := last_settings(output)) is not None:
            return own.split
    return next(iter(recorded_splits(output).values()), None)


def dropped_parts(output: Location) -> list[Location]:
    """Find the parts below a folder that go in an interrupted run, which drops their split."""
    below = _parts_below(output).items()
    return [output / name for name, settings in below if not settings.split]


def parts_of(output: At) -> dict[str, At]:
    """Give the folders of the parts of a split folder by name; none if it is not one."""
    return {name: output / name for name in _names_of(output) if is_packed(output / name)}


def _names_of(output: Location) -> Iterable[str]:
    """Name the parts of a split folder; one whose manifest is damaged if another part names it."""
    splits = recorded_splits(output)
    return dict.fromkeys(name for split in splits.values() for name in (*split.names, *splits))


def top_folder(folder: Location, settings: PackSettings) -> Location:
    """Give the folder to pack into, which for a part is that of the split."""
    return folder.parent if settings.part and settings.part == folder.name else folder


def require_no_parts(folder: Location) -> None:
    """Raise if a folder is split, for a command that takes one part."""
    if not is_packed(folder) and (found := parts_of(folder)):
        fix = f"give {' or '.join(map(str, found.values()))}"
        raise UsageError(f"is split into {', '.join(found)}", path=folder, fix=fix)
