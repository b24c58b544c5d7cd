"""What can be wrong with an array of a store, each fault with its fix, and how it is found."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from shardwright.engine import Engine
from shardwright.interrupts import check
from shardwright.recipe import Component, Shape
from shardwright.storage.files import explained
from shardwright.store import npy
from shardwright.store.commands import Commands
from shardwright.store.npy import BadArrayError
from shardwright.store.store import ARRAY_SUFFIX, Store

_BATCH = 256  # samples a worker checks at a time
_MAKE = "run {run.derive}"
_REMAKE = "delete the file and run {run.derive}"

# What is wrong, and the fix, in which ``run`` is a Commands.
FAULTS = {
    "missing": ("not there, but a record needs it", _MAKE),
    "unreadable": ("cannot be read", "make it readable, or delete it and run {run.derive}"),
    "not_a_file": ("not a regular file", _REMAKE),
    "empty": ("empty", _REMAKE),
    "not_npy": ("not a .npy file", _REMAKE),
    "truncated": ("shorter than its header says", _REMAKE),
    "trailing_bytes": ("longer than its header says", _REMAKE),
    "wrong_dtype": ("its dtype is not {component.dtype}", _REMAKE),
    "wrong_shape": ("its shape cannot be that of {component.name}", _REMAKE),
    "wrong_size": ("its shape {shape} fits neither its picture nor its bucket", _REMAKE),
    "fortran_order": ("in Fortran order", _REMAKE),
    "pickled": ("holds pickled objects, which are never loaded", _REMAKE),
    "nan": ("has values that are not numbers (NaN)", _REMAKE),
    "infinite": ("has infinite values", _REMAKE),
    "constant": ("all its values are the same", _REMAKE),
}

Sizes = tuple[tuple[int, int], ...]  # width and height of each picture that an array may be of


class Look(NamedTuple):
    """What a look at an array file shows."""

    fault: str | None
    size: int = 0  # where its header is valid, as for the others
    shape: Shape = ()
    time: int = 0  # when it came or changed last


def look(
    image_id: str, folder: int, component: Component, sizes: Sizes = (), *, read_data: bool = False
) -> Look:
    """Check an array in an open folder: its header and size, and if asked all its values."""
    size = time = 0
    shape: Shape = ()
    try:
        fd = npy.open_array(image_id + ARRAY_SUFFIX, folder)
        try:
            size, shape = npy.check(fd, component)
            time = os.fstat(fd).st_ctime_ns
            if sizes and shape not in _shapes(component, sizes):
                raise BadArrayError("wrong_size")
            if read_data:
                from shardwright.store import arrays  # here, because it alone needs NumPy

                nbytes = component.nbytes(shape)
                arrays.check_values(fd, size - nbytes, nbytes, component.dtype)
        finally:
            os.close(fd)
    except BadArrayError as error:
        return Look(error.reason, size, shape, time)
    return Look(None, size, shape, time)


@lru_cache(maxsize=4096)
def _shapes(component: Component, sizes: Sizes) -> tuple[Shape, ...]:
    return tuple(component.shape_for(width, height) for width, height in sizes)


class ArrayFault(NamedTuple):
    """An array that is not as it should be; sorts by sample and component."""

    sample: int
    component: int  # its place in the recipe
    image_id: str
    name: str
    shape: Shape

    def words(self, store: Store, run: Commands) -> tuple[str, str]:
        """Say what is wrong, and the fix."""
        what, fix = FAULTS[self.name]
        component = store.recipe.components[self.component]
        return what.format(component=component, shape=self.shape), fix.format(run=run)


@dataclass(frozen=True)
class ArraysToCheck:
    """Samples for a worker to check, the first of them being number ``first``."""

    store: Store
    components: tuple[int, ...]  # their places in the recipe
    first: int
    ids: list[str]
    sizes: list[Sizes]
    read_data: bool


@dataclass
class ArrayCounts:
    """What was seen of some samples."""

    samples: int = 0
    arrays: int = 0  # that were there
    bytes: int = 0  # of those with a valid header
    faults: list[ArrayFault] = field(default_factory=list)

    def add(self, other: ArrayCounts) -> None:
        """Add what was seen of other samples."""
        self.samples += other.samples
        self.arrays += other.arrays
        self.bytes += other.bytes
        self.faults += other.faults


def check_all(
    store: Store,
    components: tuple[int, ...],
    ids: Collection[str],
    sizes: Sequence[Sizes],
    engine: Engine,
    *,
    read_data: bool = False,
) -> Generator[ArrayCounts, None, None]:
    """Check the arrays of samples on all cores; what is found comes in no order."""
    each = iter(ids)
    tasks = (
        ArraysToCheck(
            store,
            components,
            first,
            list(islice(each, _BATCH)),
            list(sizes[first : first + _BATCH]),
            read_data,
        )
        for first in range(0, len(ids), _BATCH)
    )
    with closing(engine.run(_check, tasks)) as batches:
        yield from batches


def _check(task: ArraysToCheck) -> Iterator[ArrayCounts]:
    seen = ArrayCounts(len(task.ids))
    rows = task.store.recipe.components
    with ExitStack() as stack:
        folders = []
        for row in task.components:
            path = task.store.arrays(rows[row])
            with explained(path):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            folders.append((row, fd))
        samples = zip(task.ids, task.sizes, strict=True)
        for sample, (image_id, sizes) in enumerate(samples, task.first):
            check()
            for row, folder in folders:
                found = look(image_id, folder, rows[row], sizes, read_data=task.read_data)
                seen.arrays += found.fault != "missing"
                seen.bytes += found.size
                if found.fault is not None:
                    seen.faults.append(ArrayFault(sample, row, image_id, found.fault, found.shape))
    yield seen
