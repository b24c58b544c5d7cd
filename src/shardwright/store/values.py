"""What the values of an array must not be: not numbers, infinite, or all the same."""

from __future__ import annotations

import os

import numpy as np

from shardwright.store.npy import BadArrayError

_CHUNK = 1 << 20  # bytes: stays in the processor's cache, and bounds our memory


def check(fd: int, offset: int, nbytes: int, dtype: str) -> None:
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
