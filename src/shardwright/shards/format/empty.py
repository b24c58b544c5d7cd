"""The empty caption: its arrays and masks travel beside the shards, for guidance without a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.layout import EMPTY_FOLDER, STATE_FOLDER
from shardwright.recipes import Component, Recipe, Shape
from shardwright.shards.format.record_members import mask_fault
from shardwright.storage.urls import Location
from shardwright.store import content
from shardwright.store.npy import BadArrayError


def empty_name(suffix: str) -> str:
    """Name the file of a member for the empty caption; a path below the output folder."""
    return f"{STATE_FOLDER}/{EMPTY_FOLDER}/{suffix}"


def empty_folder(output: Location) -> Location:
    """Give the folder of these files."""
    return output / STATE_FOLDER / EMPTY_FOLDER


def empty_members(recipe: Recipe) -> tuple[str, ...]:
    """Name the members that are made from a caption: arrays and masks."""
    return tuple(suffix for component in recipe.captions for suffix in component.members)


def empty_faults(
    found: Mapping[str, bytes], recipe: Recipe, *, read_data: bool = False
) -> Iterator[tuple[str, str]]:
    """Find files that are not what the recipe says; give the suffix, and what is wrong.

    With ``read_data``, also those with NaN or infinity. One value everywhere is possible here.
    """
    shapes = {}
    for suffix, data in found.items():
        try:
            shapes[suffix] = shape_of(data, recipe.arrays[suffix])
        except BadArrayError as error:
            yield suffix, error.reason.replace("_", " ")
        else:
            if read_data and not _is_finite(data, recipe.arrays[suffix]):
                yield suffix, "has values that are not numbers (NaN) or infinite"
    for component in recipe.captions:
        mask, suffix = component.mask, component.suffix
        if mask is None or mask.suffix not in shapes:
            continue
        values = found[mask.suffix][-mask.length :]
        if values.translate(None, b"\0\1"):
            yield mask.suffix, "has values other than 0 and 1"
        elif component.trim and suffix in shapes and mask_fault(shapes[suffix], values):
            yield suffix, f"has other rows than {mask.suffix} keeps"


def shape_of(data: bytes, component: Component) -> Shape:
    """Give the shape of a component's file in memory, or raise BadArrayError."""
    return content.check_part(lambda count, at: data[at : at + count], len(data), component)[1]


def _is_finite(data: bytes, component: Component) -> bool:
    # Here, because readers of shards do not need them.
    from shardwright.shards.format import decode
    from shardwright.store import arrays

    return arrays.is_finite(decode.array(memoryview(data)), component)
