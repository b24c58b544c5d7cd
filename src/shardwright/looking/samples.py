"""One sample in full: its record, its caption with the cut, its members and their statistics.

The page asks for it, and the terminal, which may save its picture as a file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardwright.errors import InputMissingError, ShardwrightError
from shardwright.looking.pictures import Previews
from shardwright.looking.sources import Member, Source
from shardwright.recipes import BFLOAT16, Recipe
from shardwright.reporting.rows import CUT_AT
from shardwright.storage import files
from shardwright.store.facts import LOST
from shardwright.store.records import Record

if TYPE_CHECKING:
    from shardwright.looking import LookSummary


_SHORT = 300  # characters of a caption in a list


def brief(source: Source, number: int) -> dict[str, Any]:
    """Give what a list shows of a sample."""
    return _brief(source, number, record_of(source, number)[0])


def _brief(source: Source, number: int, record: Record) -> dict[str, Any]:
    table = source.table
    numbers = {name: _finite(table.numbers[name].item(number)) for name in table.columns}
    caption = record.get("caption")
    return {
        "n": number,
        "id": table.ids[number],
        "caption": caption[:_SHORT] if isinstance(caption, str) else "",
        "bucket": table.buckets[number],
        "part": table.parts[number],
        "state": table.states[number],
        "flags": table.flags_of(number),
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
    masks = dict(_masks(source, number))
    caption = record.get("caption")
    return {
        **_brief(source, number, record),
        "fault": fault,
        "text": caption if isinstance(caption, str) else "",
        "cuts": list(cuts(source, number)),
        "tokens": {name: mask.count("1") for name, mask in masks.items()},
        "masks": masks,
        "members": [
            statistics(source.member(number, name), source.recipe)
            for name in source.members(number)
        ],
        "record": shown_record(record, source.recipe),
        "place": source.place(number),
    }


def show(pictures: Previews, image_id: str, save: Path | None, summary: LookSummary) -> None:
    """Find a sample by its id, and save its picture if asked to."""
    source = pictures.source
    try:
        number = source.table.ids.index(image_id)
    except ValueError:
        example = source.table.ids[0]
        fix = f"give one that is there, for example {example}"
        raise InputMissingError(
            f"--id {image_id}: no such sample", path=source.name, fix=fix
        ) from None
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


def cuts(source: Source, number: int) -> Iterator[dict[str, Any]]:
    """Say where the caption of a sample was cut off: the characters kept, and the tokens lost."""
    numbers = source.table.numbers
    for column, values in numbers.items():
        if column.startswith(LOST) and values[number] > 0:
            name = column.removeprefix(LOST)
            at = _finite(numbers[CUT_AT + name].item(number)) if CUT_AT + name in numbers else None
            kept = None if at is None else int(at)
            yield {"component": name, "at": kept, "lost": int(values[number])}


def shown_record(record: Record, recipe: Recipe) -> Record:
    """Give a record without its masks, which are shown by themselves."""
    masks = {mask.field for mask in recipe.masks}
    return {name: value for name, value in record.items() if name not in masks}


def statistics(member: Member, recipe: Recipe) -> dict[str, Any]:
    """Describe a member; of an array also its values."""
    owner = next((c.name for c in recipe.components if member.name in c.members), None)
    found: dict[str, Any] = {
        "name": member.name,
        "component": owner,
        "dtype": None,
        "shape": None,
        "bytes": member.bytes,
        "heat": isinstance(member.value, np.ndarray),
        "xxh3": member.xxh3,
        "at": member.place,
        "fault": member.fault,
    }
    if isinstance(member.value, np.ndarray):
        half = member.component is not None and member.component.dtype == BFLOAT16
        dtype = BFLOAT16 if half else str(member.value.dtype)
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
