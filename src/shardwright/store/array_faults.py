"""The faults that an array of a store can have, with their fixes, and the checks that find them."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

from shardwright.engine import Engine
from shardwright.interrupts import check
from shardwright.recipes import Component, Shape
from shardwright.storage.files import explained
from shardwright.store import content, npy
from shardwright.store.commands import Commands
from shardwright.store.store import Store

_BATCH = 256  # samples a worker checks at a time
_MAKE = "run {run.derive}"
_REMAKE = "delete the file and run {run.derive}"
_ELSEWHERE = "make it again with your own tool"

# What is wrong, and the fix, in which ``run`` is a Commands.
FAULTS = {
    "missing": ("missing, but a record needs it", _MAKE),
    "unreadable": ("cannot be read", "make it readable, or delete it and run {run.derive}"),
    "not_a_file": ("not a regular file", _REMAKE),
    "empty": ("empty", _REMAKE),
    "not_npy": ("not a .npy file", _REMAKE),
    "not_a_picture": ("not a {component.extension} picture", _REMAKE),
    "truncated": ("shorter than its header says", _REMAKE),
    "trailing_bytes": ("longer than its header says", _REMAKE),
    "wrong_dtype": ("its dtype is not {component.dtype}", _REMAKE),
    "wrong_shape": ("its shape is not one of {component.name}", _REMAKE),
    "wrong_size": ("its shape {shape} fits neither its picture nor its bucket", _REMAKE),
    "other_mask": ("its {shape[0]} rows are not the tokens that its mask keeps", _REMAKE),
    "fortran_order": ("in Fortran order", _REMAKE),
    "pickled": ("holds pickled objects, which are never loaded", _REMAKE),
    "nan": ("has values that are not numbers (NaN)", _REMAKE),
    "infinite": ("has infinite values", _REMAKE),
    "unreadable_picture": ("cannot be decoded", _REMAKE),
    "constant": ("all its values are the same", _REMAKE),
}


class Expected(NamedTuple):
    """What the record of a sample says about the shapes of its arrays."""

    sizes: tuple[tuple[int, int], ...] = ()  # width and height of each picture they may be of
    rows: tuple[tuple[str, int], ...] = ()  # of each trimmed component, by its mask


ANYTHING = Expected()
_Sample = tuple[str, Expected]


class Look(NamedTuple):
    """The result for one array file; size, shape and time are known if its header is valid."""

    fault: str | None
    size: int = 0
    shape: Shape = ()
    time: int = 0  # when it was created or last changed


def look(
    image_id: str,
    folder: int,
    component: Component,
    expected: Expected = ANYTHING,
    *,
    read_data: bool = False,
) -> Look:
    """Check an array in an open folder: header, size and, with ``read_data``, all values."""
    size = time = 0
    shape: Shape = ()
    try:
        fd = npy.open_array(image_id + component.extension, folder)
        try:
            size, shape = content.check(fd, component)
            time = os.fstat(fd).st_ctime_ns
            if not _fits(component, shape, expected.sizes):
                raise npy.BadArrayError("wrong_size")
            if component.trim and dict(expected.rows).get(component.name, shape[0]) != shape[0]:
                raise npy.BadArrayError("other_mask")
            if read_data:
                from shardwright.store import arrays  # here, because only this needs NumPy

                arrays.check_values(fd, size, shape, component)
        finally:
            os.close(fd)
    except npy.BadArrayError as error:
        return Look(error.reason, size, shape, time)
    return Look(None, size, shape, time)


@lru_cache(maxsize=4096)
def _fits(component: Component, shape: Shape, sizes: tuple[tuple[int, int], ...]) -> bool:
    return not sizes or any(component.fits(shape, *size) for size in sizes)


class ArrayFault(NamedTuple):
    """An invalid array; sorts by sample and component."""

    sample: int
    component: int  # its place in the recipe
    image_id: str
    name: str
    shape: Shape

    def words(self, store: Store, run: Commands) -> tuple[str, str]:
        """Say what is wrong, and the fix."""
        what, fix = FAULTS[self.name]
        component = store.recipe.components[self.component]
        fix = _ELSEWHERE if component.source == "elsewhere" else fix.format(run=run)
        return what.format(component=component, shape=self.shape), fix


@dataclass
class ArrayCounts:
    """The result for some samples."""

    samples: int = 0
    arrays: int = 0  # that exist
    bytes: int = 0  # of those with a valid header
    faults: list[ArrayFault] = field(default_factory=list)

    def add(self, other: ArrayCounts) -> None:
        """Add the result for other samples."""
        self.samples += other.samples
        self.arrays += other.arrays
        self.bytes += other.bytes
        self.faults += other.faults


def check_all(
    store: Store,
    components: tuple[int, ...],
    ids: Collection[str],
    expected: Sequence[Expected],
    engine: Engine,
    *,
    read_data: bool = False,
) -> Generator[ArrayCounts, None, None]:
    """Check the arrays of samples on all cores; results come in any order.

    ``components`` are places in the recipe.
    """
    samples = zip(ids, expected, strict=True)
    firsts = range(0, len(ids), _BATCH)
    batches = ((first, list(islice(samples, _BATCH))) for first in firsts)
    with closing(engine.run(partial(_check, store, components, read_data), batches)) as results:
        yield from results


def _check(
    store: Store, components: tuple[int, ...], read_data: bool, batch: tuple[int, list[_Sample]]
) -> Iterator[ArrayCounts]:
    """Check some samples, the first of which has the given number."""
    first, samples = batch
    seen = ArrayCounts(len(samples))
    with ExitStack() as stack:
        folders = []
        for row in components:
            path = store.arrays(store.recipe.components[row])
            with explained(path):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            folders.append((row, store.recipe.components[row], fd))
        for number, (image_id, expected) in enumerate(samples, first):
            check()
            for row, component, folder in folders:
                found = look(image_id, folder, component, expected, read_data=read_data)
                seen.arrays += found.fault != "missing"
                seen.bytes += found.size
                if found.fault is not None:
                    seen.faults.append(ArrayFault(number, row, image_id, found.fault, found.shape))
    yield seen
