"""Checks of a ``.npy`` file's header and size, before NumPy reads it.

``np.load`` accepts trailing bytes, big-endian, structured and pickled arrays; a store holds none of
these. No memory is allocated by what a header claims.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shardwright import regular
from shardwright.pictures import Read
from shardwright.recipes import Component, Shape

MAGIC = b"\x93NUMPY"
HEADER_BYTES = 128  # what NumPy writes for every array of ours
_LONGEST_HEADER = 4096  # other writers pad differently, but none of ours needs more


class BadArrayError(ValueError):
    """An array that the recipe does not allow; ``args[0]`` names the reason."""

    @property
    def reason(self) -> str:
        """Name what is wrong."""
        return str(self.args[0])


@dataclass(frozen=True)
class Header:
    """The header of a ``.npy`` file, and where its data begins."""

    dtype: str
    fortran_order: bool
    shape: Shape
    data_offset: int


def header_bytes(dtype: str, shape: Shape) -> bytes:
    """Write a version 1.0 header, exactly as NumPy does."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("latin-1")
    padded = text.ljust(-(len(text) + 11) % 64 + len(text)) + b"\n"
    return MAGIC + b"\x01\x00" + len(padded).to_bytes(2, "little") + padded


def check(read: Read, size: int, component: Component) -> tuple[int, Shape]:
    """Give the size and shape of an array file of so many bytes, or raise BadArrayError."""
    shape, expected = _judge(read(min(HEADER_BYTES, size), 0), component)
    if shape is None:  # a longer header, by another writer
        shape, expected = _judge(read(min(expected, size), 0), component)
        if shape is None:
            raise BadArrayError("truncated")
    if size != expected:
        raise BadArrayError("truncated" if size < expected else "trailing_bytes")
    return expected, shape


@lru_cache(maxsize=1024)  # a store has few different headers and very many files
def _judge(start: bytes, component: Component) -> tuple[Shape | None, int]:
    """Check a header against a component: give the shape, and the size that the file must have.

    If the header is longer than these bytes, give None and its length.
    """
    length = header_length(start)
    if length > len(start):
        return None, length
    header = parse(start[:length])
    if header.dtype != component.header_dtype:
        raise BadArrayError("wrong_dtype")
    if not component.accepts(header.shape):
        raise BadArrayError("wrong_shape")
    if header.fortran_order:
        raise BadArrayError("fortran_order")
    return header.shape, header.data_offset + component.nbytes(header.shape)


def open_array(path: Path | str, folder_fd: int | None = None) -> int:
    """Open an array file for reading."""
    try:
        return regular.descriptor(path, folder_fd=folder_fd)
    except FileNotFoundError:
        raise BadArrayError("missing") from None
    except (IsADirectoryError, regular.NotRegularError):
        raise BadArrayError("not_a_file") from None
    except OSError:
        raise BadArrayError("unreadable") from None


def header_length(start: bytes) -> int:
    """Give the length of the header that starts with these bytes."""
    if not start:
        raise BadArrayError("empty")
    if len(start) < 12 or start[:6] != MAGIC or start[6] not in (1, 2, 3) or start[7] != 0:
        raise BadArrayError("not_npy")
    data = 10 if start[6] == 1 else 12
    length = data + int.from_bytes(start[8:data], "little")
    if length > _LONGEST_HEADER:
        raise BadArrayError("not_npy")
    return length


def parse(start: bytes) -> Header:
    """Read a complete header."""
    length = header_length(start)
    if len(start) < length:
        raise BadArrayError("truncated")
    try:
        text = start[10 if start[6] == 1 else 12 :].strip(b" \n")  # str.strip() removes more
        fields = ast.literal_eval(text.decode("latin-1"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise BadArrayError("not_npy") from None
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise BadArrayError("not_npy")
    dtype, fortran_order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if not isinstance(dtype, str):
        raise BadArrayError("wrong_dtype")  # a structured array
    if "O" in dtype:
        raise BadArrayError("pickled")
    is_shape = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    if not is_shape or not isinstance(fortran_order, bool):
        raise BadArrayError("not_npy")
    return Header(dtype, fortran_order, shape, length)
