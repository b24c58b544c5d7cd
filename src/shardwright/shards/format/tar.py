"""USTAR, byte for byte: the headers and padding of a shard.

Time, owner and mode are fixed (0, 0, 0644), so the same input gives the same bytes anywhere.
"""

from __future__ import annotations

from functools import lru_cache

BLOCK = 512
END = bytes(2 * BLOCK)
LARGEST_MEMBER = 8**11 - 1  # the most that the size field of a plain header can hold

_NAME = 100
_SIZE_AT, _CHECKSUM_AT = 124, 148


def _template() -> bytes:
    header = bytearray(BLOCK)
    header[100:108] = b"0000644\0"  # mode
    header[108:116] = header[116:124] = b"0000000\0"  # uid, gid
    header[136:148] = b"00000000000\0"  # mtime
    header[148:156] = b" " * 8  # the checksum counts itself as spaces
    header[156:157] = b"0"  # a regular file
    header[257:265] = b"ustar\x0000"
    return bytes(header)


_TEMPLATE = _template()
_BEFORE_SIZE = _TEMPLATE[_NAME:_SIZE_AT]
_AFTER_SIZE = _TEMPLATE[_SIZE_AT + 12 : _CHECKSUM_AT]


def header(name: str, size: int) -> bytes:
    """Build the 512-byte header of one regular file."""
    raw = name.encode("ascii")
    if len(raw) > _NAME or size > LARGEST_MEMBER:
        raise ValueError(f"{name!r} of {size} bytes does not fit a plain tar header")
    middle, checksum = _middle(size)
    return raw.ljust(_NAME, b"\0") + middle + _end(checksum + sum(raw))


@lru_cache(maxsize=1024)  # nearly all arrays of a bucket have one size
def _middle(size: int) -> tuple[bytes, int]:
    """Give the bytes between name and checksum, and the sum of all but the name."""
    digits = b"%011o\0" % size
    return _BEFORE_SIZE + digits + _AFTER_SIZE, sum(_TEMPLATE) + sum(digits)


@lru_cache(maxsize=4096)  # names of one length differ little in their sums
def _end(checksum: int) -> bytes:
    return b"%06o\0 " % checksum + _TEMPLATE[_CHECKSUM_AT + 8 :]


def padding(size: int) -> int:
    """Count the zero bytes after a member's data."""
    return -size % BLOCK


def member_bytes(size: int) -> int:
    """Count all bytes of a member: header, data and padding."""
    return BLOCK + size + -size % BLOCK
