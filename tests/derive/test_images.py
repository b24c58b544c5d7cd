"""Reading pictures: every mode, every orientation, and what is no picture at all."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from shardwright.deriving import images
from shardwright.deriving.images import BadImageError, Size, measure
from shardwright.encoders.base import Picture, pixels
from tests.derive.pictures import gradient, make_bomb

ORIENTATION = 0x0112

# How a camera must have turned an upright picture to write it with each orientation.
TURNED: dict[int, Callable[[Image.Image], Image.Image]] = {
    1: lambda image: image,
    2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
}


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with images.strict():
        yield


def read(path: str) -> Picture:
    return pixels(images.read(path).image)


def saved(tmp_path: Path, image: Image.Image, name: str, **options: Any) -> str:  # noqa: ANN401
    path = tmp_path / name
    image.save(path, **options)
    return str(path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
@pytest.mark.parametrize("orientation", TURNED)
def test_orientation_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    upright = gradient(96, 64)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = TURNED[orientation](Image.fromarray(upright))
    quality = {"quality": 100} if suffix in ("jpg", "webp") else {}
    path = saved(tmp_path, image, f"turned.{suffix}", exif=exif, **quality)
    found = read(path)
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).mean() < 3
    assert measure(path) == Size(96, 64)


def test_a_png_is_measured_without_its_pixels_and_with_what_comes_after_them(
    tmp_path: Path,
) -> None:
    path = Path(saved(tmp_path, Image.fromarray(gradient(960, 640)), "x.png"))
    data, exif = path.read_bytes(), Image.Exif()
    exif[ORIENTATION] = 6
    text = b"eXIf" + exif.tobytes()[6:]
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    path.write_bytes(data[:-12] + chunk + data[-12:])
    assert measure(str(path)) == Size(640, 960)
    assert read(str(path)).shape[:2] == (960, 640)
    path.write_bytes(data[:2000] + bytes(2000) + data[4000:])  # its pixels cannot be decoded
    assert measure(str(path)) == Size(960, 640)
    path.write_bytes(data[:-300])
    with pytest.raises(BadImageError, match="broken_image"):
        measure(str(path))


def rgba() -> Image.Image:
    values = np.zeros((8, 16, 4), np.uint8)
    values[:, :8] = (255, 0, 0, 255)
    values[:, 8:] = (0, 0, 255, 51)  # a fifth of blue over white
    return Image.fromarray(values)


def palette_with_transparency() -> Image.Image:
    image = Image.new("P", (16, 8), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (8, 0, 16, 8))
    image.info["transparency"] = 1
    return image


RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


@pytest.mark.parametrize(
    ("image", "name", "left", "right"),
    [
        (rgba(), "alpha.png", RED, (204, 204, 255)),
        (palette_with_transparency(), "palette.png", RED, WHITE),
        (palette_with_transparency(), "palette.gif", RED, WHITE),
        (rgba().convert("RGB").convert("P"), "palette.bmp", RED, BLUE),
        (rgba().convert("LA"), "grey_alpha.png", (76,) * 3, (210,) * 3),
        (rgba().convert("RGB").convert("L"), "grey.png", (76,) * 3, (29,) * 3),
        (
            rgba().convert("RGB").convert("1", dither=Image.Dither.NONE),
            "bits.png",
            (0,) * 3,
            (0,) * 3,
        ),
        (rgba().convert("RGB").convert("CMYK"), "cmyk.tiff", RED, BLUE),
        (rgba().convert("RGB").convert("HSV").convert("RGB"), "hsv.webp", RED, BLUE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_mode_becomes_rgb(
    tmp_path: Path,
    image: Image.Image,
    name: str,
    left: tuple[int, ...],
    right: tuple[int, ...],
) -> None:
    options = {"lossless": True} if name.endswith("webp") else {}
    found = read(saved(tmp_path, image, name, **options))
    assert found.shape == (8, 16, 3)
    assert found.dtype == np.uint8
    assert np.abs(found[4, 2].astype(int) - left).max() <= 1
    assert np.abs(found[4, 13].astype(int) - right).max() <= 1


def test_a_cmyk_jpeg_becomes_rgb(tmp_path: Path) -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    found = read(saved(tmp_path, image, "red.jpg", quality=95))
    assert np.abs(found.astype(int) - (254, 0, 0)).max() < 6


@pytest.mark.parametrize("name", ["deep.png", "deep.tiff"])
def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path: Path, name: str) -> None:
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    found = read(saved(tmp_path, Image.fromarray(values), name))
    assert found[..., 0].ravel().tolist() == list(range(256))


def test_every_value_of_sixteen_bits_goes_to_the_nearest_of_eight(tmp_path: Path) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    found = read(saved(tmp_path, Image.fromarray(values), "deep.png"))
    assert (np.abs(found[..., 0] * 257.0 - values) <= 128).all()


def grey_tiff(values: list[int], bits: int, photometric: int, order: str) -> bytes:
    """Write a TIFF of one row of greys, with the tags that it must have."""
    data = np.packbits(values).tobytes()
    if bits > 1:
        data = np.array(values, f"{order}u{bits // 8}").tobytes()
    tags = {256: len(values), 257: 1, 258: bits, 259: 1, 262: photometric}
    tags |= {273: 8, 277: 1, 278: 1, 279: len(data)}
    data += bytes(-len(data) % 2)
    mark = b"II" if order == "<" else b"MM"
    head = mark + struct.pack(f"{order}HI", 42, 8 + len(data))
    entries = [struct.pack(f"{order}HHIHxx", tag, 3, 1, value) for tag, value in tags.items()]
    return head + data + struct.pack(f"{order}H", len(tags)) + b"".join(entries) + bytes(4)


@pytest.mark.parametrize(("bits", "order"), [(1, "<"), (1, ">"), (8, "<"), (8, ">"), (16, "<")])
def test_a_tiff_in_which_white_is_zero_is_no_negative(
    tmp_path: Path, bits: int, order: str
) -> None:
    white = 2**bits - 1
    ramp = [0, white, 0, 0, white, white // 4, white // 2, white - white // 8]
    for photometric in (0, 1):
        path = tmp_path / f"{photometric}.tiff"
        path.write_bytes(grey_tiff(ramp, bits, photometric, order))
        wanted = [round(value * 255 / white) for value in ramp]
        if photometric == 0:
            wanted = [255 - value for value in wanted]
        assert read(str(path))[0, :, 1].tolist() == wanted


def test_a_compressed_tiff_in_which_white_is_zero_is_no_negative(tmp_path: Path) -> None:
    values = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    path = tmp_path / "deep.tiff"
    Image.fromarray(values).save(path, compression="tiff_lzw", tiffinfo={262: 0})
    with Image.open(path) as image:
        assert image.tag_v2[262] == 0  # type: ignore[attr-defined]
    assert read(str(path))[..., 0].ravel().tolist() == list(range(255, -1, -1))


@pytest.mark.parametrize(
    ("dtype", "words"), [(np.float32, "floating point"), (np.int32, "32 bits, or with a sign,")]
)
def test_greys_without_an_agreed_white_are_refused(
    tmp_path: Path, dtype: type[Any], words: str
) -> None:
    path = saved(tmp_path, Image.fromarray(np.zeros((8, 8), dtype)), "deep.tiff")
    with pytest.raises(BadImageError) as caught:
        read(path)
    reason, detail = caught.value.args
    assert reason == "unknown_white"
    assert detail == (f"grey values of {words} have no agreed white; convert it to 8 or 16 bits")


def test_greys_of_twelve_bits_are_refused_and_not_dark(tmp_path: Path) -> None:
    path = tmp_path / "twelve.tiff"
    Image.new("L", (8, 8)).save(path)  # as many bytes as are needed, and more
    tag = (258).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    assert path.read_bytes().count(tag) == 1
    path.write_bytes(path.read_bytes().replace(tag + b"\x08", tag + b"\x0c"))
    with pytest.raises(BadImageError, match="grey values of 12 bits have no agreed white"):
        read(str(path))


@pytest.mark.parametrize(
    "name", ["a.avif", "a.jp2", "a.j2k", "a.jfif", "a.jpe", "a.JPG", "a.qoi", "a.ppm", "a.tga"]
)
def test_other_formats_are_read(tmp_path: Path, name: str) -> None:
    values = gradient(96, 64)
    options = {"quality": 95} if name.lower() in ("a.jfif", "a.jpe", "a.jpg", "a.avif") else {}
    path = saved(tmp_path, Image.fromarray(values), name, **options)
    assert np.abs(read(path).astype(int) - values).mean() < 2
    assert measure(path) == Size(96, 64)


def test_greys_of_sixteen_bits_in_a_pgm_are_scaled(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    found = read(saved(tmp_path, Image.fromarray(values), "deep.pgm"))
    assert found[..., 0].ravel().tolist() == list(range(256))


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
JXL = b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.heic", HEIC, "pip install pillow-heif"),
        ("a.jpg", HEIC, "pip install pillow-heif"),  # as phones and messengers rename them
        ("a.jxl", JXL, "pip install pillow-jxl-plugin"),
        ("a.png", b"\xff\x0a" + bytes(40), "pip install pillow-jxl-plugin"),
        ("a.psd", b"8BPS\0\1" + bytes(40), "save it as PNG, TIFF or JPEG"),
        ("a.svg", b"<svg/>", "save it as PNG, TIFF or JPEG"),
        ("a.NEF", grey_tiff([0, 255], 8, 1, "<"), "export it as TIFF or JPEG"),
    ],
    ids=["heic", "heic as jpg", "jxl", "jxl as png", "psd", "svg", "raw"],
)
def test_a_format_that_cannot_be_read_here_says_what_to_do(
    tmp_path: Path, name: str, data: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = [name for name in images._READABLE if name not in ("HEIF", "JXL")]
    monkeypatch.setattr(images, "_READABLE", tuple(installed))
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadImageError) as caught:
        read(str(path))
    reason, detail = caught.value.args
    assert reason == "format_not_readable"
    assert words in detail


def test_a_jpeg_by_the_name_of_a_format_that_cannot_be_read_is_a_jpeg(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(jpeg())
    assert read(str(tmp_path / "a.heic")).shape == (256, 256, 3)


def test_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, frames[0], "moving.gif", save_all=True, append_images=frames[1:])
    assert read(path)[8, 8].tolist() == [255, 0, 0]


def test_one_pixel_is_a_picture(tmp_path: Path) -> None:
    assert read(saved(tmp_path, Image.new("RGB", (1, 1), "red"), "one.png")).shape == (1, 1, 3)


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(gradient(256, 256)).save(out, "jpeg", quality=95)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("empty.jpg", b"", "broken_image"),
        ("text.jpg", b"this is not a picture\n", "broken_image"),
        ("head.jpg", jpeg()[:200], "broken_image"),
        ("half.jpg", jpeg()[: len(jpeg()) // 2], "broken_image"),
        ("most.jpg", jpeg()[:-200], "broken_image"),
        ("postscript.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "broken_image"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_full_picture_is_broken(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadImageError) as caught:
        read(str(tmp_path / name))
    assert caught.value.args[0] == reason


@pytest.mark.parametrize("suffix", ["png", "webp", "gif", "bmp", "tiff"])
def test_truncated_files_fail_in_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut.{suffix}"
    Image.fromarray(gradient(128, 128)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadImageError) as caught:
        read(str(path))
    assert caught.value.args[0] == "broken_image"


def test_truncated_files_fail_even_if_another_library_allowed_them(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(jpeg()[: len(jpeg()) // 2])
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with images.strict(), pytest.raises(BadImageError):
            read(str(path))
        assert ImageFile.LOAD_TRUNCATED_IMAGES, "as it was before"
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match="unreadable"):
        read(str(tmp_path / "gone.png"))


@pytest.mark.parametrize("size", [(30_000, 30_000), (12_000, 8_000)])
def test_bombs_are_too_large_and_are_not_decoded(tmp_path: Path, size: tuple[int, int]) -> None:
    make_bomb(tmp_path / "bomb.png", *size)
    for function in (read, measure):
        with pytest.raises(BadImageError) as caught:
            function(str(tmp_path / "bomb.png"))
        assert caught.value.args[0] == "too_large"


def test_a_side_of_30000_pixels_is_no_bomb(tmp_path: Path) -> None:
    assert read(saved(tmp_path, Image.new("L", (30_000, 8)), "wide.png")).shape == (8, 30_000, 3)
