"""What can be wrong with a store's arrays, each with its cure, and how a worker finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from shardwright import interrupts
from shardwright.buckets import Bucket
from shardwright.recipe import Component, Shape
from shardwright.storage.files import explained
from shardwright.store import npy
from shardwright.store.findings import Finding
from shardwright.store.npy import BadArrayError
from shardwright.store.store import ARRAY_SUFFIX, Store

_MAKE = "run shardwright derive"
_REMAKE = "delete the file and run shardwright derive"

FAULTS = {
    "missing": ("not there, but a record needs it", _MAKE),
    "unreadable": ("cannot be read", "make it readable, or delete it and run shardwright derive"),
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


class Picture(NamedTuple):
    """What a record says that its arrays' shapes follow from."""

    width: int  # 0 where the record does not say
    height: int
    bucket: str  # "" where the record does not say


class ArrayFault(NamedTuple):
    """An array that is not as it should be; sorts by sample and component."""

    sample: int
    component: int  # its place in the recipe
    image_id: str
    reason: str
    shape: Shape

    def finding(self, store: Store) -> Finding:
        """Say it in words."""
        component = store.recipe.components[self.component]
        path = store.array(component, self.image_id)
        what, cure = FAULTS[self.reason]
        what = what.format(component=component, shape=self.shape)
        return Finding(f"{component.name}_{self.reason}", str(path), None, what, cure)


@dataclass(frozen=True)
class ArraysToCheck:
    """Samples for a worker to check, the first of them being number ``first``."""

    store: Store
    components: tuple[int, ...]  # their places in the recipe
    read_data: bool
    first: int
    ids: list[str]
    pictures: list[Picture]


@dataclass
class Checked:
    """What was seen of some samples."""

    samples: int = 0
    arrays: int = 0  # that were there
    bytes: int = 0  # of the sound ones
    faults: list[ArrayFault] = field(default_factory=list)

    def add(self, other: Checked) -> None:
        """Take in what was seen of other samples."""
        self.samples += other.samples
        self.arrays += other.arrays
        self.bytes += other.bytes
        self.faults += other.faults


def check(task: ArraysToCheck) -> Iterator[Checked]:
    """Check the arrays of some samples: their headers and sizes, and if asked all their values."""
    seen = Checked(samples=len(task.ids))
    rows = task.store.recipe.components
    with ExitStack() as stack:
        folders = []
        for row in task.components:
            path = task.store.arrays(rows[row])
            with explained(path):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            folders.append((row, fd))
        for sample, (image_id, picture) in enumerate(
            zip(task.ids, task.pictures, strict=True), task.first
        ):
            interrupts.check()
            for row, folder in folders:
                reason, size, shape = _look(image_id, folder, rows[row], picture, task)
                seen.arrays += reason != "missing"
                seen.bytes += size
                if reason is not None:
                    seen.faults.append(ArrayFault(sample, row, image_id, reason, shape))
    yield seen


def _look(
    image_id: str, folder: int, component: Component, picture: Picture, task: ArraysToCheck
) -> tuple[str | None, int, Shape]:
    """Give what is wrong with an array, its size if its header is sound, and its shape."""
    size = 0
    shape: Shape = ()
    try:
        fd = npy.open_array(image_id + ARRAY_SUFFIX, folder)
        try:
            size, shape = npy.check(fd, component)
            shapes = _shapes(component, picture)
            if shapes and shape not in shapes:
                return "wrong_size", size, shape
            if task.read_data:
                from shardwright.store import values  # here, because it alone needs NumPy

                nbytes = component.nbytes(shape)
                values.check(fd, size - nbytes, nbytes, component.dtype)
        finally:
            os.close(fd)
    except BadArrayError as error:
        return error.reason, size, shape
    return None, size, shape


@lru_cache(maxsize=4096)
def _shapes(component: Component, picture: Picture) -> tuple[Shape, ...]:
    """Give the shapes that an array may have: its picture's, or its bucket's; none if unknown."""
    sizes = [(picture.width, picture.height)] if picture.width else []
    if picture.bucket:
        bucket = Bucket.parse(picture.bucket)
        sizes.append((bucket.width, bucket.height))
    return tuple(component.shape_for(width, height) for width, height in sizes)
