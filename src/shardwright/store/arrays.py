"""Reading and writing the arrays and pictures of a store; a file that exists is complete."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright import pictures
from shardwright.errors import StorageError
from shardwright.pictures import BadPictureError
from shardwright.recipes import BFLOAT16, Component, Shape
from shardwright.storage import files
from shardwright.store import content, npy
from shardwright.store.npy import BadArrayError

Array = npt.NDArray[Any]

_CHUNK = 1 << 20  # bytes: stays in the processor's cache, and bounds our memory
_THREADS = 16  # a disk commits in one go what waits together
_SHARE = 8  # files a thread has open at most: macOS allows a process 256
_BFLOAT16_INFINITY = 0x7F80  # its bits

# Its name, its name while it is written, and what it holds.
_Item = tuple[Path, Path, Array | bytes]


def write_arrays(arrays: Iterable[tuple[Path, Array | bytes]]) -> None:
    """Publish a group of arrays, byte for byte as ``np.save`` would write them, and of pictures.

    When this returns, all of them are on the disk. If it fails, some may be, and no other files
    are left.
    """
    group = list(arrays)
    seal_arrays(group)
    publish_arrays([path for path, _ in group])


def seal_arrays(arrays: Iterable[tuple[Path, Array | bytes]]) -> None:
    """Write a group of files to the disk, under their temporary names; all of them or none."""
    group = [(path, _tmp(path), array) for path, array in arrays]
    share = max(1, min(_SHARE, len(group) // _THREADS))
    shares = [group[first : first + share] for first in range(0, len(group), share)]
    with _or_removed(path for path, _, _ in group), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_write, shares))


def publish_arrays(paths: Sequence[Path]) -> None:
    """Give sealed files their names. If it fails, those without a name are removed."""
    with _or_removed(paths):
        for path in paths:
            files.publish(_tmp(path), path)
    for folder in dict.fromkeys(path.parent for path in paths):
        files.sync_folder(folder)


def remove_sealed(paths: Iterable[Path]) -> None:
    """Remove the files that have no name yet, as far as they are there."""
    for path in paths:
        with suppress(StorageError):  # the error that brought us here is the one to report
            files.remove(_tmp(path))


@contextmanager
def _or_removed(paths: Iterable[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_sealed(paths)
        raise


def _tmp(path: Path) -> Path:
    # ".tmp" is no longer than ".npy" or ".webp", so the longest image_id fits too.
    return path.with_suffix(files.TMP_SUFFIX)


def read_array(path: Path, component: Component) -> Array:
    """Read one array as it is stored, or raise BadArrayError."""
    with open(npy.open_array(path), "rb", buffering=0) as file:
        size, shape = content.check(file.fileno(), component)
        data_bytes = component.nbytes(shape)
        try:
            file.seek(size - data_bytes)
            array: Array = np.fromfile(file, component.header_dtype)
        except OSError:
            raise BadArrayError("unreadable") from None
    if array.nbytes != data_bytes:  # it changed since it was checked
        raise BadArrayError("truncated" if array.nbytes < data_bytes else "trailing_bytes")
    return array.reshape(shape)


def stored(array: Array, component: Component) -> Array:
    """Cast an array to the form in which its component is stored."""
    with np.errstate(over="ignore"):  # to infinity
        if component.dtype != BFLOAT16:
            return array.astype(component.dtype)
        bits = array.astype("<f4").view("<u4")
    # To the nearest, of two the even one; of a NaN, the upper bits alone could be an infinity.
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    nan = bits & 0x7FFFFFFF > _BFLOAT16_INFINITY << 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype("<u2")


def is_finite(array: Array, component: Component) -> bool:
    """Whether a stored array has no NaN and no infinity; integers never have."""
    return _fault(array, component) is None


def _fault(array: Array, component: Component) -> str | None:
    """Name what is wrong with floats.

    They are compared by their bits, which is several times faster: without the sign, the bits of a
    number are below those of infinity, and those of NaN above.
    """
    if not component.is_float or not array.size:
        return None
    bits = array.view(f"<u{array.itemsize}")
    infinity = _BFLOAT16_INFINITY
    if component.dtype != BFLOAT16:
        infinity = int(np.array(np.inf, array.dtype).view(bits.dtype))
    highest = int((bits & bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)).max())
    return None if highest < infinity else "nan" if highest > infinity else "infinite"


def values(array: Array, component: Component) -> Array:
    """Give the numbers that a stored array holds: bfloat16 as float32, others as they are."""
    return widened(array) if component.dtype == BFLOAT16 else array


def widened(bits: Array) -> Array:
    """Give the float32 values of an array that holds bfloat16: the upper half of each."""
    values: Array = bits.astype("<u4") << 16
    return values.view("<f4")


def check_values(fd: int, size: int, shape: Shape, component: Component) -> None:
    """Read all values of a checked file, or raise BadArrayError."""
    if not component.is_array:
        _decode(fd, size, shape)
        return
    kind = np.dtype(component.header_dtype)
    offset, first, fault = size - component.nbytes(shape), None, None
    constant = size - offset > kind.itemsize
    while offset < size:
        try:
            data = os.pread(fd, min(_CHUNK, size - offset), offset)
        except OSError:
            raise BadArrayError("unreadable") from None
        numbers = np.frombuffer(data, kind, len(data) // kind.itemsize)
        if not len(numbers):
            raise BadArrayError("truncated")
        offset += numbers.nbytes
        bits = numbers.view(f"<u{kind.itemsize}")
        first = bits[0] if first is None else first
        constant = constant and bool((bits == first).all())
        if (found := _fault(numbers, component)) and fault != "nan":
            fault = found
    if fault is not None:
        raise BadArrayError(fault)
    if constant and component.is_never_constant:
        raise BadArrayError("constant")


def _decode(fd: int, size: int, shape: Shape) -> None:
    """Decode a picture, and look for bytes between its end and that of the file."""
    from PIL import Image  # here, because few stores have pictures

    if shape[0] * shape[1] > pictures.PIXEL_LIMIT:
        raise BadArrayError("unreadable_picture")

    def read(count: int, at: int) -> bytes:
        return os.pread(fd, count, at)

    try:
        if pictures.length(read, size, pictures.examine(read)) != size:
            raise BadArrayError("trailing_bytes")
        with warnings.catch_warnings(), open(os.dup(fd), "rb") as file:
            warnings.simplefilter("ignore")  # of metadata
            formats = ("JPEG", "PNG", "WEBP")
            file.seek(0)
            Image.open(file, formats=formats).verify()  # the checksums of a PNG
            file.seek(0)
            with Image.open(file, formats=formats) as image:
                image.load()
                found = (image.height, image.width, len(image.getbands()))
    except BadArrayError:
        raise
    except BadPictureError as error:
        raise BadArrayError(*error.args) from None
    except Exception:  # decoders may raise anything
        raise BadArrayError("unreadable_picture") from None
    if found != shape:
        raise BadArrayError("unreadable_picture")


def _write(share: Sequence[_Item]) -> None:
    """Write some files before waiting for the first, so that the disk commits many at once."""
    with ExitStack() as unsealed:
        written = []
        for path, tmp, held in share:
            parts = pieces(held)
            file = unsealed.enter_context(files.NewFile(path, tmp=tmp))
            for part in parts:
                file.write(part)
            file.hasten()
            written.append((file, sum(map(len, parts))))
        for file, length in written:
            file.seal(length)


def pieces(held: Array | bytes) -> list[bytes | memoryview]:
    """Give the bytes of a file: the header and the data of an array, or a picture as it is."""
    if isinstance(held, bytes):
        return [held]
    data = np.ascontiguousarray(held).reshape(-1).view(np.uint8).data
    return [npy.header_bytes(held.dtype.str, held.shape), data]
