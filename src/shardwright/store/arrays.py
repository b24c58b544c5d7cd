"""The arrays of a store: a ``.npy`` that exists is whole, and only a recipe's are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.errors import StorageError
from shardwright.recipe import Component
from shardwright.storage import files
from shardwright.store import npy
from shardwright.store.npy import BadArrayError
from shardwright.store.store import ARRAY_SUFFIX

Array = npt.NDArray[Any]

SUFFIX = ARRAY_SUFFIX
_CHUNK = 1 << 20  # bytes: stays in the processor's cache, and bounds our memory
_THREADS = 16  # a disk commits what waits together in one go
_SHARE = 8  # files a thread has open at most: macOS allows a process 256


class _Item(NamedTuple):
    path: Path
    tmp: Path
    array: Array


def write_arrays(arrays: Iterable[tuple[Path, Array]]) -> None:
    """Publish a group of arrays, byte for byte as ``np.save`` would write them.

    When this returns, all of them are on the disk under their names. If it fails, some may be; the
    rest have left nothing behind.
    """
    group = [_Item(path, _tmp(path), array) for path, array in arrays]
    share = max(1, min(_SHARE, len(group) // _THREADS))
    shares = [group[first : first + share] for first in range(0, len(group), share)]
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_write, shares))
        for item in group:
            files.publish(item.tmp, item.path)
    except BaseException:
        for item in group:
            with suppress(StorageError):  # the error that brought us here is the one to report
                files.remove(item.tmp)
        raise
    for folder in dict.fromkeys(item.path.parent for item in group):
        files.sync_folder(folder)


def read_array(path: Path, component: Component) -> Array:
    """Read one array, or say by BadArrayError what is wrong with its file."""
    with open(npy.open_array(path), "rb", buffering=0) as file:
        size, shape = npy.check(file.fileno(), component)
        data_bytes = component.nbytes(shape)
        try:
            file.seek(size - data_bytes)
            array: Array = np.fromfile(file, component.dtype)
        except OSError:
            raise BadArrayError("unreadable") from None
    if array.nbytes != data_bytes:  # it changed since it was checked
        raise BadArrayError("truncated" if array.nbytes < data_bytes else "trailing_bytes")
    return array.reshape(shape)


def check_values(fd: int, offset: int, nbytes: int, dtype: str) -> None:
    """Read all values of an array, which begin at an offset; say by BadArrayError what is wrong.

    Floats are judged by their bits, several times faster than by their values: without its sign, a
    number's bits are below those of infinity, and those of anything that is not a number above.
    """
    kind = np.dtype(dtype)
    bits = np.dtype(f"<u{kind.itemsize}")
    unsigned = bits.type((1 << 8 * kind.itemsize - 1) - 1)
    highest = 0
    first = None
    constant = True
    end = offset + nbytes
    while offset < end:
        try:
            data = os.pread(fd, min(_CHUNK, end - offset), offset)
        except OSError:
            raise BadArrayError("unreadable") from None
        count = len(data) // kind.itemsize
        if not count:
            raise BadArrayError("truncated")
        offset += count * kind.itemsize
        values = np.frombuffer(data, bits, count)
        first = values[0] if first is None else first
        constant = constant and bool((values == first).all())
        if kind.kind == "f":
            highest = max(highest, int((values & unsigned).max()))
    if kind.kind == "f":
        infinity = int(np.array(np.inf, kind).view(bits))
        if highest >= infinity:
            raise BadArrayError("nan" if highest > infinity else "infinite")
    if constant:
        raise BadArrayError("constant")


def _write(share: Sequence[_Item]) -> None:
    """Write some files, and only then wait for the first, so that the disk has many to commit."""
    with ExitStack() as unsealed:
        written = []
        for path, tmp, array in share:
            header = npy.header_bytes(array.dtype.str, array.shape)
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file = unsealed.enter_context(files.NewFile(path, tmp))
            file.write(header)
            file.write(data)
            file.hasten()
            written.append((file, len(header) + len(data)))
        for file, length in written:
            file.seal(length)


def _tmp(path: Path) -> Path:
    """Name the unfinished file; ``.tmp`` is as long as ``.npy``, so every id has room for it."""
    return path.with_name(path.name.removesuffix(SUFFIX) + files.TMP_SUFFIX)
