"""Files of any component: what is not exactly what the recipe says has a reason of its own."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardwright.encoders.contract import picture
from shardwright.recipes import ANY, Component, Mask, Shape, Side
from shardwright.store import arrays, content
from shardwright.store.faults import ARRAY_FAULTS, Expected, look
from shardwright.store.npy import BadArrayError
from tests import stores
from tests.fuzz.targets import on_disk

FORMATS = {"jpg": "jpeg", "png": "png", "webp": "webp"}
VARIANTS: dict[str, dict[str, Any]] = {
    "jpg": {"quality": 90},
    "jpg progressive": {"progressive": True, "quality": 30},
    "jpg restarted": {"restart_marker_rows": 1},
    "jpg with EXIF": {"exif": b"Exif\0\0" + b"\xff\xd9\xff\xc0" * 9000},
    "jpg with a profile": {"icc_profile": b"\xff\xd8\xff\xda" * 50_000},
    "png": {},
    "png with a profile": {"icc_profile": b"IEND" * 50_000},
    "webp": {"quality": 80},
    "webp lossless": {"lossless": True},
    "webp with a profile": {"icc_profile": b"VP8 " * 1000},
}


def component(extension: str) -> Component:
    shape = (Side("height", 1), Side("width", 1), 3)
    return Component("p", "p", f"p.{extension}", "|u1", shape, encoder="picture")


@cache
def file(variant: str, width: int = 72, height: int = 40, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(picture(width, height)).convert(mode)
    image.save(out, FORMATS[variant.split()[0]], **VARIANTS[variant])
    return out.getvalue()


def check(data: bytes, extension: str, *, decode: bool = False) -> tuple[int, Shape]:
    fd = on_disk(data)
    found = content.check(fd, component(extension))
    if decode:
        arrays.check_values(fd, *found, component(extension))
    return found


def fault(data: bytes, extension: str, *, decode: bool = False) -> str | None:
    try:
        check(data, extension, decode=decode)
    except BadArrayError as error:
        found = error.reason
    else:
        return None
    assert found in ARRAY_FAULTS
    return found


def of_variant(variant: str) -> str:
    return variant.split()[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("width", "height"), [(72, 40), (1, 1), (300, 7)])
def test_a_picture_of_pillow_is_valid_and_has_its_size(
    variant: str, width: int, height: int
) -> None:
    data = file(variant, width, height)
    assert check(data, of_variant(variant), decode=True) == (len(data), (height, width, 3))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_picture_cut_anywhere_is_refused(variant: str) -> None:
    data = file(variant)
    draw = random.Random(variant)
    cuts = {
        *range(60),
        *range(len(data) - 60, len(data)),
        *(draw.randrange(len(data)) for _ in range(400)),
    }
    for length in cuts:
        expected = ("empty",) if length == 0 else ("truncated", "not_a_picture")
        assert fault(data[:length], of_variant(variant)) in expected, length
        if length > 30:
            assert fault(data[:length], of_variant(variant)) == "truncated", length


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("more", [b"\0", b"\xff", b"\0" * 500, b"trailer", None], ids=repr)
def test_bytes_after_a_picture_are_found(variant: str, more: bytes | None) -> None:
    data = file(variant)
    assert fault(data + (more or data), of_variant(variant), decode=True) == "trailing_bytes"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_picture_under_the_name_of_another_format_is_refused(variant: str) -> None:
    for extension in FORMATS:
        expected = None if extension == of_variant(variant) else "not_a_picture"
        assert fault(file(variant), extension) == expected


@pytest.mark.parametrize("extension", FORMATS)
def test_what_is_no_picture_is_refused(extension: str) -> None:
    gif = io.BytesIO()
    Image.new("RGB", (8, 8)).save(gif, "gif")
    for data in (gif.getvalue(), stores.npy(np.zeros(3)), b"RIFF\4\0\0\0WAVE" + bytes(40), b"\n"):
        assert fault(data, extension) == "not_a_picture"
    assert fault(b"", extension) == "empty"


@pytest.mark.parametrize(
    ("variant", "mode", "reason"),
    [
        ("jpg", "L", "wrong_shape"),
        ("jpg", "CMYK", "wrong_shape"),
        ("png", "RGBA", "wrong_shape"),
        ("png", "P", "wrong_shape"),
        ("png", "I;16", "wrong_dtype"),
        ("webp", "RGBA", None),  # it has an alpha channel only where something shows through
    ],
)
def test_a_picture_that_is_not_rgb_of_8_bits_is_refused(
    variant: str, mode: str, reason: str | None
) -> None:
    data = file(variant, mode=mode) if mode != "I;16" else _grey16()
    assert fault(data, variant) == reason


def _grey16() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), 999, np.uint16)).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize("lossless", [True, False])
def test_a_webp_that_shows_through_or_moves_is_refused(lossless: bool) -> None:
    out = io.BytesIO()
    Image.new("RGBA", (8, 8), (9, 9, 9, 9)).save(out, "webp", lossless=lossless)
    assert fault(out.getvalue(), "webp") == "wrong_shape"
    out = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), (n, 0, 0)) for n in (0, 200)]
    frames[0].save(out, "webp", save_all=True, append_images=frames[1:])
    assert fault(out.getvalue(), "webp") == "not_a_picture"


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Write a PNG that may lie about its size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


def test_a_picture_that_claims_an_enormous_size_is_not_decoded() -> None:
    for side in (20_000, 2**31 - 1, 2**32 - 1):
        data = png(side, side, bytes(100))
        assert check(data, "png") == (len(data), (side, side, 3))
        assert fault(data, "png", decode=True) == "unreadable_picture"


def test_a_picture_without_pixels_is_refused() -> None:
    assert fault(png(0, 5, b""), "png") == "wrong_shape"
    assert fault(png(1, 1, bytes(4)), "png", decode=True) is None


def test_a_flipped_bit_among_the_pixels_of_a_png_is_found_by_decoding_it() -> None:
    data = file("png")
    for place in range(45, len(data) - 16, len(data) // 50):
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        assert fault(flipped, "png") is None
        assert fault(flipped, "png", decode=True) == "unreadable_picture", place


def test_the_number_of_parts_of_a_file_is_bounded() -> None:
    segments = b"\xff\xd8" + b"\xff\xe0\0\2" * 70_000
    assert fault(segments + b"\xff\xd9", "jpg") == "not_a_picture"
    chunks = file("png")[:33] + b"\0\0\0\0aaaa\0\0\0\0" * 70_000
    assert fault(chunks, "png") == "not_a_picture"


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(VARIANTS)),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_a_mutated_picture_is_refused_or_decoded(
    variant: str, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(file(variant, 16, 8))
    for place, byte in changes:
        data[place % len(data)] = byte
    fault(bytes(data), of_variant(variant), decode=True)


def test_a_store_s_pictures_are_looked_at_under_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "one.webp").write_bytes(file("webp"))
    (tmp_path / "two.webp").write_bytes(file("webp")[:-3])
    os.mkfifo(tmp_path / "three.webp")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        found = [
            look(name, folder, component("webp"), Expected(sizes), read_data=True)
            for name, sizes in (
                ("one", ((72, 40),)),
                ("one", ((40, 72),)),
                ("two", ()),
                ("three", ()),
                ("four", ()),
            )
        ]
    finally:
        os.close(folder)
    faults = [each.fault for each in found]
    assert faults == [None, "wrong_size", "truncated", "not_a_file", "missing"]
    assert found[0][1:3] == (len(file("webp")), (40, 72, 3))


@pytest.mark.parametrize(
    ("made", "shape", "reason"),
    [
        (Component("a", "a", "a.npy", "<f4", (ANY, 3)), (5, 3), None),
        (Component("a", "a", "a.npy", "<f4", (ANY, 3)), (0, 3), "wrong_shape"),
        (Component("a", "a", "a.npy", "<f4", (ANY, 3)), (5, 4), "wrong_shape"),
        (
            Component("a", "a", "a.npy", "<f4", (9, 3), trim=True, mask=Mask("m", "m.npy", 9)),
            (4, 3),
            None,
        ),
        (
            Component("a", "a", "a.npy", "<f4", (9, 3), trim=True, mask=Mask("m", "m.npy", 9)),
            (10, 3),
            "wrong_shape",
        ),
        (Component("a", "a", "a.npy", "<f4", (9, 3)), (4, 3), "wrong_shape"),
    ],
)
def test_arrays_of_free_and_trimmed_axes(made: Component, shape: Shape, reason: str | None) -> None:
    data = stores.npy(np.ones(shape, "<f4"))
    if reason is None:
        assert content.check(on_disk(data), made) == (len(data), shape)
    else:
        with pytest.raises(BadArrayError, match=reason):
            content.check(on_disk(data), made)


def test_a_free_axis_of_any_claim_allocates_nothing() -> None:
    of = Component("a", "a", "a.npy", "<f4", (ANY, 3))
    with pytest.raises(BadArrayError, match="truncated"):
        content.check(on_disk(stores.npy_header("<f4", (10**12, 3)) + bytes(24)), of)
