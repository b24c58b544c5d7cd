"""ICC profiles made by hand, and what they mean, computed by NumPy; for tests."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# The colours of red, green and blue, adapted to D50, a row each.
ADOBE = np.array(
    [[0.60974, 0.31111, 0.01947], [0.20528, 0.62567, 0.06087], [0.14919, 0.06322, 0.74457]]
)
PROPHOTO = np.array(
    [
        [0.79767, 0.28804, 0.0],
        [0.13519, 0.71188, 0.0],
        [0.03134, 0.00009, 0.82491],
    ]
)
SRGB = np.array(
    [[0.43607, 0.22249, 0.01392], [0.38515, 0.71687, 0.09708], [0.14307, 0.06061, 0.71410]]
)
ADOBE_GAMMA, PROPHOTO_GAMMA = 563 / 256, 461 / 256


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def _xyz(values: Any) -> bytes:  # noqa: ANN401 - three numbers
    return b"XYZ \0\0\0\0" + _fixed(*values)


def _curve(curve: float | list[int]) -> bytes:
    entries = curve if isinstance(curve, list) else [round(curve * 256)]
    return b"curv\0\0\0\0" + struct.pack(f">I{len(entries)}H", len(entries), *entries)


def _profile(space: bytes, connection: bytes, kind: bytes, tags: dict[bytes, bytes]) -> bytes:
    table, data = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, tag in tags.items():
        tag += bytes(-len(tag) % 4)
        table += name + struct.pack(">II", start + len(data), len(tag))
        data += tag
    head = struct.pack(
        ">I4sI4s4s4s", start + len(data), b"\0" * 4, 0x02100000, kind, space, connection
    )
    head += bytes(12) + b"acsp" + bytes(28) + _fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


def rgb_profile(primaries: Matrix, curve: float | list[int]) -> bytes:
    """Make a profile of three primaries and a gamma or a table."""
    tags = {b"wtpt": _xyz((0.9642, 1.0, 0.8249))}
    for name, row in zip((b"r", b"g", b"b"), primaries, strict=True):
        tags |= {name + b"XYZ": _xyz(row), name + b"TRC": _curve(curve)}
    return _profile(b"RGB ", b"XYZ ", b"mntr", tags)


def grey_profile(curve: float | list[int]) -> bytes:
    tags = {b"wtpt": _xyz((0.9642, 1.0, 0.8249)), b"kTRC": _curve(curve)}
    return _profile(b"GRAY", b"XYZ ", b"mntr", tags)


def cmyk_profile(inks: dict[tuple[int, int, int, int], tuple[int, int, int]]) -> bytes:
    """Make a profile from L, a and b (each 0 to 255) of some full inks; all else is black."""
    corners = [(c, m, y, k) for c in (0, 1) for m in (0, 1) for y in (0, 1) for k in (0, 1)]
    ramp = bytes(range(256))
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + _fixed(1, 0, 0, 0, 1, 0, 0, 0, 1) + ramp * 4
    table += b"".join(bytes(inks.get(corner, (0, 128, 128))) for corner in corners) + ramp * 3
    tags = {b"wtpt": _xyz((0.9642, 1.0, 0.8249)), b"A2B0": table, b"A2B1": table}
    return _profile(b"CMYK", b"Lab ", b"prtr", tags)


def linear(values: NDArray[Any], gamma: float) -> Matrix:
    found: Matrix = (values / 255) ** gamma
    return found


def encoded(light: NDArray[Any]) -> Matrix:
    """Give the levels of sRGB for linear light."""
    light = light.clip(0, 1)
    low, high = light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055
    return np.where(light <= 0.0031308, low, high) * 255


def expected(values: NDArray[Any], primaries: Matrix, gamma: float) -> Matrix:
    """Compute what a picture of a profile is in sRGB."""
    return encoded(linear(values, gamma) @ primaries @ np.linalg.inv(SRGB))


def lab(lightness: int, a: int, b: int) -> Matrix:
    """Compute what L, a and b of 8 bits are in sRGB."""
    y = (lightness * 100 / 255 + 16) / 116
    f = np.array([y + (a - 128) / 500, y, y - (b - 128) / 200])
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * (0.9642, 1.0, 0.8249)
    return encoded(xyz @ np.linalg.inv(SRGB))
