"""What a picture file says of itself: its format, size and length, without decoding it.

Nothing it claims is trusted: reads are short, nothing is allocated by it, and loops are bounded.
Decoders accept files with bytes missing or added at their end; here both are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PIXEL_LIMIT = 89_478_485  # above it, Pillow suspects a decompression bomb; 256 MiB in RGB

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by its colour type
_JPEG_END = b"\xff\xd9"
_SCAN, _LAST = 0xDA, 0xD9  # markers: compressed data follows; the end
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers: the size is here
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)  # that is not part of a scan
_MOST_PARTS = 1 << 16  # chunks or segments that a file may have
_CHUNK = 1 << 20  # bytes of a scan searched at a time

Read = Callable[[int, int], bytes]  # so many bytes from an offset; fewer at the end of the file


class BadPictureError(ValueError):
    """A file that is not a picture, or not all of one; ``args[0]`` names the reason."""


@dataclass(frozen=True)
class Head:
    """What is known of a picture before it is decoded."""

    format: str  # as a suffix: jpg, png or webp
    width: int
    height: int
    channels: int
    bits: int = 8  # of a channel
    animated: bool = False


def examine(read: Read) -> Head:
    """Read the head of a file, or raise BadPictureError."""
    start = read(32, 0)
    if not start:
        raise BadPictureError("empty")
    if start.startswith(_PNG):
        if len(start) < 26:
            raise BadPictureError("truncated")
        if start[8:16] != b"\0\0\0\rIHDR" or start[25] not in _PNG_CHANNELS:
            raise BadPictureError("not_a_picture")
        width, height = (int.from_bytes(start[at : at + 4]) for at in (16, 20))
        return Head("png", width, height, _PNG_CHANNELS[start[25]], start[24])
    if start.startswith(b"\xff\xd8\xff"):
        for marker, at in _markers(read):
            if marker in _FRAMES:
                frame = read(10, at)
                if len(frame) < 10:
                    raise BadPictureError("truncated")
                height, width = (int.from_bytes(frame[n : n + 2]) for n in (5, 7))
                return Head("jpg", width, height, frame[9], frame[4])
            if marker in (_SCAN, _LAST):
                break
    elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        if len(start) < 30:
            raise BadPictureError("truncated")
        return _webp(start)
    raise BadPictureError("not_a_picture")


def length(read: Read, size: int, head: Head) -> int:
    """Find where a picture ends; bytes may follow it."""
    if head.format == "webp":
        end = 8 + int.from_bytes(read(4, 4), "little")
    elif head.format == "jpg":
        end = 2 + next(at for marker, at in _markers(read) if marker == _LAST)
    else:
        end = _png_length(read, size)
    if end > size:
        raise BadPictureError("truncated")
    return end


def require_end(read: Read, size: int, head: Head) -> None:
    """Raise unless a picture ends where its file ends."""
    mark = {"png": _PNG_END, "jpg": _JPEG_END}.get(head.format)
    if mark is not None and read(len(mark), size - len(mark)) == mark:
        return  # found without reading all of it
    if length(read, size, head) != size:
        raise BadPictureError("trailing_bytes")


def _markers(read: Read) -> Iterator[tuple[int, int]]:
    """Give the markers of a JPEG up to its end, and where each of them is."""
    at = 2
    for _ in range(_MOST_PARTS):
        part = read(4, at)
        if len(part) < 2:
            raise BadPictureError("truncated")
        if part[0] != 0xFF:
            raise BadPictureError("not_a_picture")
        if part[1] == 0xFF:  # padding
            at += 1
            continue
        yield part[1], at
        if len(part) < 4:
            raise BadPictureError("truncated")
        at += 2 + int.from_bytes(part[2:])
        if part[1] == _SCAN:
            at = _scan_end(read, at)
    raise BadPictureError("not_a_picture")


def _scan_end(read: Read, at: int) -> int:
    while data := read(_CHUNK, at):
        if found := _MARKER.search(data):
            return at + found.start()
        at += max(1, len(data) - 1)  # the last byte may begin a marker
    raise BadPictureError("truncated")


def _png_length(read: Read, size: int) -> int:
    at = len(_PNG)
    for _ in range(_MOST_PARTS):
        chunk = read(8, at)
        at += 12 + int.from_bytes(chunk[:4])
        if len(chunk) < 8 or at > size:
            raise BadPictureError("truncated")
        if chunk[4:] == b"IEND":
            return at
    raise BadPictureError("not_a_picture")


def _webp(start: bytes) -> Head:
    """Read the head of the first chunk: lossy, lossless, or with more to follow."""
    kind = start[12:16]
    if kind == b"VP8 " and start[23:26] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(start[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        return Head("webp", width, height, 3)
    if kind == b"VP8L" and start[20] == 0x2F:
        bits = int.from_bytes(start[21:25], "little")
        return Head("webp", 1 + bits % 2**14, 1 + bits // 2**14 % 2**14, 3 + bits // 2**28 % 2)
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(start[at : at + 3], "little") for at in (24, 27))
        alpha, animated = bool(start[20] & 0x10), bool(start[20] & 0x02)
        return Head("webp", width, height, 3 + alpha, animated=animated)
    raise BadPictureError("not_a_picture")
