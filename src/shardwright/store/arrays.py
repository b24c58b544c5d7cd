"""Reading and writing the arrays of a store; a ``.npy`` file that exists is complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.errors import StorageError
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.store import npy
from shardwright.store.npy import BadArrayError

Array = npt.NDArray[Any]

_CHUNK = 1 << 20  # bytes: stays in the processor's cache, and bounds our memory
_THREADS = 16  # a disk commits in one go what waits together
_SHARE = 8  # files a thread has open at most: macOS allows a process 256


_Item = tuple[Path, Path, Array]  # its name, its name while it is written, and what it holds


def write_arrays(arrays: Iterable[tuple[Path, Array]]) -> None:
    """Publish a group of arrays, byte for byte as ``np.save`` would write them.

    When this returns, all of them are on the disk. If it fails, some may be, and no other files
    are left.
    """
    # ".tmp" is as long as ".npy", so the longest image_id fits too.
    group = [(path, path.with_suffix(files.TMP_SUFFIX), array) for path, array in arrays]
    share = max(1, min(_SHARE, len(group) // _THREADS))
    shares = [group[first : first + share] for first in range(0, len(group), share)]
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_write, shares))
        for path, tmp, _ in group:
            files.publish(tmp, path)
    except BaseException:
        for _, tmp, _ in group:
            with suppress(StorageError):  # the first error is the one to report
                files.remove(tmp)
        raise
    for folder in dict.fromkeys(path.parent for path, _, _ in group):
        files.sync_folder(folder)


def read_array(path: Path, component: Component) -> Array:
    """Read one array, or raise BadArrayError."""
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
    """Read all values of an array, or raise BadArrayError.

    Floats are compared by their bits, which is several times faster: without the sign, the bits of
    a number are below those of infinity, and those of NaN above.
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
    """Write some files before waiting for the first, so that the disk commits many at once."""
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
