"""One sample in full: its record, its caption with the cut, its members and their statistics."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.errors import InputMissingError, ShardwrightError
from shardwright.recipes import BFLOAT16, Component, Recipe
from shardwright.reporting.rows import CUT_AT
from shardwright.storage import files
from shardwright.store.facts import LOST
from shardwright.store.records import Record

if TYPE_CHECKING:
    from shardwright.looking import LookSummary
    from shardwright.looking.pictures import Previews
    from shardwright.looking.sources import Source

_SHORT = 300  # characters of a caption in a list


@dataclass(frozen=True)
class Member:
    """A file of a sample: an array or a picture."""

    name: str  # the suffix that it has in a shard
    component: Component | None  # None for a mask, and if the recipe is not known
    value: NDArray[Any] | bytes | None  # of an array, of a picture; None if it is damaged
    bytes: int
    place: str
    xxh3: str | None = None  # that is on record
    fault: str | None = None


def show(pictures: Previews, image_id: str, save: Path | None, summary: LookSummary) -> None:
    """Find a sample by its id, and save its picture if asked to."""
    source = pictures.source
    if image_id not in source.table.ids:
        fix = f"give one that is there, for example {source.table.ids[0]}"
        raise InputMissingError(f"--id {image_id}: no such sample", path=source.name, fix=fix)
    number = source.table.ids.index(image_id)
    summary.sample = full(source, number)
    if save is not None:
        made = pictures.image(number)
        summary.saved_latent = made is None
        made = made or pictures.thumbnail(number, latent=True)
        if made is None:
            what = f"--save: nothing shows {image_id}"
            fix = "give the folder of the images with --images"
            raise InputMissingError(what, path=source.name, fix=fix)
        out = io.BytesIO()
        Image.open(io.BytesIO(made)).save(out, "png")
        files.write(save, out.getvalue())
        summary.saved = str(save)


def brief(source: Source, number: int) -> dict[str, Any]:
    """Give what a list shows of a sample."""
    table, caption = source.table, record_of(source, number)[0].get("caption")
    numbers = {name: _finite(table.numbers[name].item(number)) for name in table.columns}
    return {
        "n": number,
        "id": table.ids[number],
        "caption": caption[:_SHORT] if isinstance(caption, str) else "",
        "bucket": table.buckets[number],
        "part": table.parts[number],
        "state": table.states[number],
        "flags": [flag for flag, marked in table.flags.items() if marked[number]],
        "numbers": {name: value for name, value in numbers.items() if value is not None},
    }


def record_of(source: Source, number: int) -> tuple[Record, str | None]:
    """Read a record, or say why it cannot be read: the other samples are shown all the same."""
    try:
        return source.record(number), None
    except ShardwrightError as error:
        return {}, str(error)


def full(source: Source, number: int) -> dict[str, Any]:
    """Give all that is known of a sample, without its pictures."""
    record, fault = record_of(source, number)
    masks, hidden = dict(_masks(source, number)), {mask.field for mask in source.recipe.masks}
    caption = record.get("caption")
    return {
        **brief(source, number),
        "fault": fault,
        "text": caption if isinstance(caption, str) else "",
        "cuts": list(cuts(source, number)),
        "tokens": {name: mask.count("1") for name, mask in masks.items()},
        "masks": masks,
        "members": [
            statistics(source.member(number, name), source.recipe)
            for name in source.members(number)
        ],
        "record": {name: value for name, value in record.items() if name not in hidden},
        "place": source.place(number),
    }


def cuts(source: Source, number: int) -> Iterator[dict[str, Any]]:
    """Say where a component cuts off a caption: how many tokens, after which character."""
    numbers = source.table.numbers
    for column, values in numbers.items():
        if column.startswith(LOST) and values[number] > 0:
            name = column.removeprefix(LOST)
            at = numbers[CUT_AT + name][number] if CUT_AT + name in numbers else math.nan
            kept = int(at) if math.isfinite(at) else None
            yield {"component": name, "at": kept, "lost": int(values[number])}


def statistics(member: Member, recipe: Recipe) -> dict[str, Any]:
    """Describe a member; of an array also its values."""
    found: dict[str, Any] = {
        "name": member.name,
        "component": next((c.name for c in recipe.components if member.name in c.members), None),
        "dtype": None,
        "shape": None,
        "bytes": member.bytes,
        "xxh3": member.xxh3,
        "at": member.place,
        "fault": member.fault,
    }
    if isinstance(member.value, np.ndarray):
        bfloat16 = member.component is not None and member.component.dtype == BFLOAT16
        dtype = BFLOAT16 if bfloat16 else str(member.value.dtype)
        found |= {"dtype": dtype, "shape": list(member.value.shape), **_values(member.value)}
    return found


def differences(here: Source, number: int, there: Source, other: int) -> Iterator[dict[str, Any]]:
    """Compare the members that both have."""
    names = set(there.members(other))
    for name in here.members(number):
        one = here.member(number, name).value
        two = there.member(other, name).value if name in names else None
        if one is None or two is None:
            continue
        found: dict[str, Any] = {"name": name, "largest": None, "cosine": None}
        if not (_are_numbers(one) and _are_numbers(two)):
            both = isinstance(one, np.ndarray) and isinstance(two, np.ndarray)
            yield {**found, "same": bool(np.array_equal(one, two) if both else one == two)}
        elif one.shape != two.shape:
            yield {**found, "same": False}
        else:
            left, right = (each.astype(np.float64).ravel() for each in (one, two))
            with np.errstate(all="ignore"):
                length = np.linalg.norm(left) * np.linalg.norm(right)
                found["cosine"] = _finite(float(left @ right / length)) if length else None
                found["largest"] = _finite(float(np.abs(left - right).max(initial=0)))
            yield {**found, "same": bool(np.array_equal(left, right, equal_nan=True))}


def _masks(source: Source, number: int) -> Iterator[tuple[str, str]]:
    there = set(source.members(number))
    for component in source.recipe.captions:
        if component.mask is not None and component.mask.suffix in there:
            value = source.member(number, component.mask.suffix).value
            if isinstance(value, np.ndarray):
                yield component.name, "".join("1" if each else "0" for each in value.ravel())


def _values(array: NDArray[Any]) -> dict[str, Any]:
    if not _are_numbers(array) or not array.size:
        return {}
    floats = array.astype(np.float64)
    finite = floats[np.isfinite(floats)]
    found: dict[str, Any] = {
        "nan": int(np.isnan(floats).sum()),
        "inf": int(np.isinf(floats).sum()),
    }
    if finite.size:
        with np.errstate(all="ignore"):  # of huge numbers, the sum may not be finite
            mean, std = _finite(float(finite.mean())), _finite(float(finite.std()))
        found |= {"min": float(finite.min()), "max": float(finite.max()), "mean": mean, "std": std}
    return found


def _are_numbers(value: object) -> TypeGuard[NDArray[Any]]:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
