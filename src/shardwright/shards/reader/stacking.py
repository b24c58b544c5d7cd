"""Arrays of one batch: stacked, padded where captions are trimmed, or kept apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import DamageError, UsageError
from shardwright.progress import quantity
from shardwright.recipes import ANY, Shape
from shardwright.shards.format import decode
from shardwright.shards.format.again import elsewhere, overwriting
from shardwright.shards.reader.view import Sample, View
from shardwright.storage.pieces import COPY
from shardwright.store.arrays import widened
from shardwright.store.commands import quoted
from shardwright.validate import integer

Tokens = int | Mapping[str, int] | None  # the length of all trimmed fields, or of each


class Column(NamedTuple):
    """The arrays of one field."""

    arrays: list[NDArray[Any]]
    length: int | None = None  # pad the first axis of each with zeros to this; None: they are alike
    apart: bool = False  # they have a free axis, so they do not stack
    is_bfloat16: bool = False

    @property
    def shape(self) -> Shape:
        """Give the shape that each has in a stack."""
        shape = self.arrays[0].shape
        return shape if self.length is None else (self.length, *shape[1:])

    def merged(self) -> NDArray[Any] | list[NDArray[Any]]:
        """Stack the arrays: one allocation, and one copy of each. Bits of bfloat16 stay bits."""
        first = self.arrays[0]
        if self.apart:
            return [array.copy() for array in self.arrays]
        if self.length is None:
            return np.stack(self.arrays, dtype=first.dtype)
        found = np.zeros((len(self.arrays), *self.shape), first.dtype)
        for row, array in zip(found, self.arrays, strict=True):
            row[: len(array)] = array
        return found


Columns = dict[str, Column]
Stack = Callable[[Columns], dict[str, Any]]


def stacked(columns: Columns) -> dict[str, Any]:
    """Stack each field for NumPy."""
    return {field: _numbers(column) for field, column in columns.items()}


def _numbers(column: Column) -> NDArray[Any] | list[NDArray[Any]]:
    found = column.merged()
    if not column.is_bfloat16:
        return found
    return list(map(widened, found)) if column.apart else widened(np.asarray(found))


class Stacking:
    """How the arrays of a dataset become columns; made once, for all its batches."""

    def __init__(self, view: View, tokens: Tokens) -> None:
        recipe, fields = view.catalog.recipe, view.fields
        components = [c for c in recipe.components if c.is_array] if recipe else []
        self._view = view
        self._apart = {c.suffix for c in components if ANY in c.shape}
        self._trimmed = {  # with their masks
            c.suffix: c.mask.suffix
            for c in components
            if c.trim and c.mask and ANY not in c.shape and {c.suffix, c.mask.suffix} & {*fields}
        }
        self._lengths = self._given(tokens)

    def _given(self, tokens: Tokens) -> dict[str, int]:
        """Give the length that each field is padded to; raise if it is too short for one."""
        if tokens is None:
            return {}
        known = ", ".join(self._trimmed)
        fix = f"there are {known}" if known else "leave tokens out"
        if not isinstance(tokens, Mapping):
            tokens = dict.fromkeys(self._trimmed or [""], tokens)
        lengths = {name: integer("tokens", length, least=1) for name, length in tokens.items()}
        for field in lengths:
            if field not in self._trimmed:
                name = f"{field}: not a trimmed field" if field else "no field is trimmed"
                raise UsageError(f"tokens: {name}", path=self._view.folder.name, fix=fix)
        for field, sizes in self._view.sizes(self._view.numbers).items():
            if field in lengths:  # look at the longest now, not in the middle of an epoch
                longest = int(self._view.numbers[sizes.argmax()])
                sample = next(self._view.narrowed(field).samples([longest]))
                _require_room(sample["__key__"], field, len(sample[field]), lengths[field])
        return lengths

    def require_stackable(self, bucket: str, sizes: Mapping[str, NDArray[np.int64]]) -> None:
        """Raise now, not in the middle of an epoch, if arrays of a bucket differ in size."""
        for field, found in sizes.items():
            if field in self._apart or field in self._trimmed:
                continue
            kinds, counts = np.unique(found, return_counts=True)
            if len(kinds) > 1:
                odd, total = len(found) - counts.max(), len(found)
                what = f"bucket {bucket}: {odd:,} of {total:,} {field} differ in size"
                raise UsageError(what, fix=_one_shape(self._view, field))

    def columns(self, samples: list[Sample]) -> Columns:
        """Gather the arrays of some samples of one bucket."""
        found: Columns = {}
        for field in self._view.fields:
            if decode.is_array(field):
                column = Column(
                    [sample[field] for sample in samples],
                    apart=field in self._apart,
                    is_bfloat16=field in self._view.halves,
                )
                for array in column.arrays if column.is_bfloat16 else ():
                    self._view.require_bits(field, array)
                if not column.apart:
                    free = 1 if field in self._trimmed else 0
                    _require_one_shape(self._view, samples, field, column.arrays, free)
                found[field] = column
        for field, mask in self._trimmed.items():
            self._pad(samples, field, mask, found)
        return found

    def _pad(self, samples: list[Sample], field: str, mask: str, found: Columns) -> None:
        """Give the arrays of a field and their masks one length: every kept row counts."""
        kept = [len(a) for a in found[field].arrays] if field in found else []
        if mask in found:
            ones = [int(array.sum()) for array in found[mask].arrays]
            if kept and kept != ones:
                sample = next(s for s, a, b in zip(samples, kept, ones, strict=True) if a != b)
                what = f"{sample['__key__']}.{field} has other rows than {mask} keeps"
                raise DamageError(what, path=self._view.folder.name, fix=COPY)
            kept = ones
        length = self._lengths.get(field, max(kept))
        for sample, count in zip(samples, kept, strict=True):
            _require_room(sample["__key__"], field, count, length)
        if field in found:
            found[field] = found[field]._replace(length=length)
        if mask in found:
            dtype = found[mask].arrays[0].dtype
            found[mask] = Column([np.ones(count, dtype) for count in kept], length)


def _require_room(key: str, field: str, count: int, length: int) -> None:
    if count > length:
        what = f"{key}.{field} has {quantity(count, 'tokens')}, but tokens is {length}"
        raise UsageError(what, fix=f"give tokens={count} or more, or leave it out")


def _require_one_shape(
    view: View, samples: list[Sample], field: str, arrays: list[NDArray[Any]], free: int
) -> None:
    """Raise if arrays differ beyond their first ``free`` axes."""
    first = arrays[0]
    wanted = first.shape[free:], first.dtype
    for sample, array in zip(samples, arrays, strict=True):
        if (array.shape[free:], array.dtype) != wanted:
            what = (
                f"{sample['__key__']}.{field} is {array.dtype} {array.shape}, but "
                f"{samples[0]['__key__']}.{field} of the same bucket is {first.dtype} {first.shape}"
            )
            raise UsageError(what, fix=_one_shape(view, field))


def _one_shape(view: View, field: str) -> str:
    """Say how to give all arrays of a bucket one shape."""
    what, recipe = "a batch needs one shape per bucket", view.catalog.recipe
    component = recipe.arrays.get(field) if recipe else None
    if component is None or not component.follows_picture or component.source == "elsewhere":
        return what
    last, name, url = view.catalog.last, view.folder.name, not view.folder.can_replace
    if last is not None and (inputs := last.inputs) is not None:
        where = "another --output-dir" if url else "--overwrite"
        images = " ".join(map(quoted, inputs)) or "the images"
        return f"{what}: build {images} again, with the same flags and --fit bucket and {where}"
    folder, _, part = name.rpartition("/")
    if last and last.settings.split and part in last.settings.split.names:
        name = folder or "."  # all parts are packed at once
    pack = overwriting("--overwrite", last, None)
    if url:
        pack, name = elsewhere(last, None), "URL"
    return (
        f"{what}: with the flags of your store, run shardwright derive --fit bucket --recompute "
        f"{component.name}, then shardwright pack {pack}{' ' * bool(pack)}--output-dir "
        f"{quoted(name)}"
    )
