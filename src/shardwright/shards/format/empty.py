"""The empty caption: its arrays and masks travel beside the shards, for guidance without a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shardwright.layout import STATE_FOLDER
from shardwright.recipes import Component, Recipe, Shape
from shardwright.shards.format.record_members import mask_fault
from shardwright.storage import files
from shardwright.store import content
from shardwright.store.npy import BadArrayError

_FOLDER = "empty"


def empty_name(suffix: str) -> str:
    """Name the file of a member for the empty caption; a path below the output folder."""
    return f"{STATE_FOLDER}/{_FOLDER}/{suffix}"


def empty_folder(output: Path) -> Path:
    """Give the folder of these files."""
    return output / STATE_FOLDER / _FOLDER


def read_files(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """Read those of some files that are there."""
    found = {}
    for name, path in paths.items():
        with files.explained(path), suppress(FileNotFoundError):
            found[name] = path.read_bytes()
    return found


def empty_members(recipe: Recipe) -> dict[str, str | None]:
    """Name the members that are made from a caption, each with the suffix of its mask."""
    found: dict[str, str | None] = {}
    for component in recipe.captions:
        mask = component.mask.suffix if component.mask else None
        found[component.suffix] = mask
        found |= {mask: None} if mask else {}
    return found


def empty_faults(found: Mapping[str, bytes], recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Find files that are not what the recipe says; give the suffix, and what is wrong."""
    shapes = {}
    for suffix, data in found.items():
        try:
            shapes[suffix] = _shape(data, recipe.arrays[suffix])
        except BadArrayError as error:
            yield suffix, error.reason.replace("_", " ")
    for component in recipe.captions:
        mask, suffix = component.mask, component.suffix
        if mask is None or mask.suffix not in shapes:
            continue
        values = found[mask.suffix][-mask.length :]
        if values.translate(None, b"\0\1"):
            yield mask.suffix, "has values other than 0 and 1"
        elif component.trim and suffix in shapes and mask_fault(shapes[suffix], values):
            yield suffix, f"has other rows than {mask.suffix} keeps"


def _shape(data: bytes, component: Component) -> Shape:
    return content.check_part(lambda count, at: data[at : at + count], len(data), component)[1]
