"""Reading pictures: upright, in RGB, of a bounded size, cut to the frame that their arrays show."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from shardwright.deriving.colour import Conversion, conversion
from shardwright.deriving.sources import FORMAT_OF, is_regular
from shardwright.encoders.base import Picture
from shardwright.pictures import PIXEL_LIMIT
from shardwright.recipes import Component, Recipe, Side
from shardwright.store.provenance import SRGB

# By content, whatever the name says. Only these: for others, Pillow may start programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "QOI")
_PLUGGED = ("HEIF", "JXL")  # with packages that the user may have installed
_BY_NAME = "TGA"  # its content does not show that it is one
_INSTEAD = {
    "HEIF": "HEIC and HEIF need a plug-in: pip install pillow-heif",
    "JXL": "JPEG XL needs a plug-in: pip install pillow-jxl-plugin",
    "AVIF": "AVIF needs Pillow 11.3 or later: pip install --upgrade pillow",
    "RAW": "the raw data of a camera; export it as TIFF or JPEG",
}
_BRANDS = {b"av": "AVIF", b"he": "HEIF", b"mi": "HEIF", b"ms": "HEIF"}  # first bytes
_JXL = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
_ORIENTATION = 0x0112
_BITS = 258  # per sample, in a TIFF
_PHOTOMETRIC = 262  # what its values mean: 0 if white is zero
_QUARTER_TURNS = (5, 6, 7, 8)  # the orientations that swap the sides

Box = tuple[int, int, int, int]  # left, top, right, bottom


class BadImageError(ValueError):
    """A file without a usable picture; ``args`` are the reason's name and a detail."""


class Size(NamedTuple):
    """The sides of an upright picture."""

    width: int
    height: int


class Pictures(NamedTuple):
    """One picture by each colour rule, and why its profile was not applied, if it was not."""

    by_colour: dict[str, Picture]
    unapplied: str | None
    plain: bool  # whether these are the pixels of the file, as any reader would see them


@dataclass(frozen=True)
class Frame:
    """The part of a picture that an array shows, and the size it is resized to."""

    box: Box
    size: Size


@contextmanager
def strict() -> Iterator[None]:
    """Have Pillow refuse bombs and truncated files, without its other warnings.

    These settings are global to the process, so they are made once, around the reading threads.
    """
    truncated = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = truncated


def measure(path: str) -> Size:
    """Give the size of a picture, upright, from the head of its file."""
    with _opened(path) as image:
        # Of a TIFF, Pillow gives the size that it will have when it is upright.
        turned = image.format != "TIFF" and image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
        return Size(image.height, image.width) if turned else Size(*image.size)


def read(path: str, colours: Collection[str]) -> Pictures:
    """Read a picture: orientation applied, any mode to RGB, alpha over white."""
    with _opened(path) as image:
        _require_white(image)
        image.load()
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            upright = _eight_bits(image, upright)
        profile = image.info.get("icc_profile")
        convert = conversion(profile, upright.mode) if profile else Conversion()
        if convert.apply is None:
            one = _pixels(_rgb(upright, convert))
            unapplied = None if convert.usable else "profile_not_usable"
            turned = image.getexif().get(_ORIENTATION, 1) != 1
            plain = image.mode == "RGB" and not turned and getattr(image, "n_frames", 1) == 1
            return Pictures(dict.fromkeys(colours, one), unapplied, plain)
        rules = {colour: convert if colour == SRGB else Conversion() for colour in colours}
        found = {colour: _pixels(_rgb(upright, rule)) for colour, rule in rules.items()}
        return Pictures(found, None if set(colours) == {SRGB} else "profile_ignored", False)


def has_other_colours(path: str) -> bool:
    """Whether a picture has a colour profile that changes its colours."""
    with suppress(BadImageError), _opened(path) as image:
        profile = image.info.get("icc_profile")
        mode = "L" if image.mode.startswith("I") else image.mode
        return bool(profile) and conversion(profile, mode).apply is not None
    return False


def frame(fit: str, size: Size, component: Component, recipe: Recipe) -> Frame:
    """Choose the part of a picture for a component that follows its sides.

    ``original`` keeps the picture, except for the remainder at the right and bottom when its sides
    are divided. ``bucket`` takes the largest centred part of the bucket's shape, at its size.
    """
    if fit == "original":
        divisors = {axis.of: axis.divisor for axis in component.shape if isinstance(axis, Side)}
        width = size.width - size.width % divisors.get("width", 1)
        height = size.height - size.height % divisors.get("height", 1)
        if not width or not height:
            detail = f"{size.width}x{size.height} pixels are too few for {component.name}"
            raise BadImageError("too_small", detail)
        return Frame((0, 0, width, height), Size(width, height))
    return _bucket_frame(size, recipe)


def _bucket_frame(size: Size, recipe: Recipe) -> Frame:
    bucket = recipe.bucket_for(*size)
    scale = min(size.width / bucket.width, size.height / bucket.height)
    width = max(1, min(size.width, round(bucket.width * scale)))
    height = max(1, min(size.height, round(bucket.height * scale)))
    left, top = (size.width - width) // 2, (size.height - height) // 2
    return Frame((left, top, left + width, top + height), Size(bucket.width, bucket.height))


def left_out(size: Size, recipe: Recipe) -> tuple[str, str] | None:
    """Say why the recipe's selection leaves an image out: the reason's name and a detail."""
    limits, (width, height) = recipe.selection, size
    if limits.min_side is not None and min(size) < limits.min_side:
        return "below_min_side", f"{width}x{height} pixels, and min_side is {limits.min_side}"
    if recipe.fit != "bucket" or (limits.max_upscale, limits.max_crop) == (None, None):
        return None
    frame = _bucket_frame(size, recipe)
    left, top, right, bottom = frame.box
    upscale = max(frame.size.width / (right - left), frame.size.height / (bottom - top))
    crop = 1 - (right - left) * (bottom - top) / (width * height)
    if limits.max_upscale is not None and upscale > limits.max_upscale:
        detail = f"enlarged {upscale:.2f} times, and max_upscale is {limits.max_upscale}"
        return "above_max_upscale", detail
    if limits.max_crop is not None and crop > limits.max_crop:
        return "above_max_crop", f"{crop:.0%} cropped, and max_crop is {limits.max_crop}"
    return None


def framed(picture: Picture, frame: Frame) -> Picture:
    """Cut a picture to a frame, and resize it to the frame's size."""
    left, top, right, bottom = frame.box
    part = picture[top:bottom, left:right]
    if (right - left, bottom - top) == frame.size:
        return part
    image = Image.fromarray(np.ascontiguousarray(part))
    return np.array(image.resize(frame.size, Image.Resampling.LANCZOS))


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open a picture, and turn any error into a reason."""
    try:
        if not is_regular(path):
            raise BadImageError("unreadable", "not a regular file")
        named = _format_by_name(path)
        if named == "RAW":  # most are TIFF files, of which Pillow would read a thumbnail
            raise BadImageError("format_not_readable", _INSTEAD[named])
        formats = (*_READABLE, named) if named == _BY_NAME else _READABLE
        with Image.open(path, formats=formats) as image:
            if image.width * image.height > PIXEL_LIMIT:
                detail = f"{image.width}x{image.height} is more than {PIXEL_LIMIT:,} pixels"
                raise BadImageError("too_large", detail)
            yield image
    except BadImageError:
        raise
    except UnidentifiedImageError as error:
        format_ = _format_by_content(path) or _format_by_name(path)
        if format_ is None or format_ in (*_READABLE, _BY_NAME):
            raise BadImageError("broken_image", str(error)) from None
        detail = _INSTEAD.get(format_, "save it as PNG, TIFF or JPEG")
        raise BadImageError("format_not_readable", detail) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImageError("too_large", f"more than {PIXEL_LIMIT:,} pixels") from None
    except MemoryError:
        raise BadImageError("too_large", "not enough memory to decode it") from None
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise BadImageError("unreadable", str(error.strerror)) from None
    except Exception as error:  # decoders may raise anything
        raise BadImageError("broken_image", str(error) or type(error).__name__) from None


def _readable() -> tuple[str, ...]:
    """Name the formats that can be read here, with the plug-ins that are installed."""
    Image.init()
    with suppress(Exception):  # a plug-in may be missing or broken
        import_module("pillow_heif").register_heif_opener()
    with suppress(Exception):
        import_module("pillow_jxl")
    return tuple(name for name in _FORMATS + _PLUGGED if name in Image.OPEN)


_READABLE = _readable()


def _format_by_name(path: str) -> str | None:
    return FORMAT_OF.get(os.path.splitext(path)[1].lower())


def _format_by_content(path: str) -> str | None:
    """Recognise the formats that need a plug-in; they often have the suffix of another."""
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        return None
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:10])
    return "JXL" if head.startswith(_JXL) else None


def _require_white(image: Image.Image) -> None:
    """Refuse grey values without a known white."""
    bits = 16
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS, (1,))[0]
    if image.mode == "F":
        what = "floating point"
    elif image.mode == "I" and image.format not in ("PNG", "PPM"):  # 16 bits, in an older Pillow
        what = "32 bits, or with a sign,"
    elif image.mode.startswith("I;16") and bits != 16:
        what = f"{bits} bits"
    else:
        return
    detail = f"grey values of {what} have no agreed white; convert it to 8 or 16 bits"
    raise BadImageError("unknown_white", detail)


def _pixels(image: Image.Image) -> Picture:
    """Give the pixels, read-only: several encoders see the same picture."""
    pixels = np.array(image)
    pixels.setflags(write=False)
    return pixels


def _rgb(image: Image.Image, convert: Conversion) -> Image.Image:
    if not image.has_transparency_data:
        return convert(image)
    image = image.convert("RGBA")
    over = convert(image)
    over.putalpha(image.getchannel("A"))
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, over).convert("RGB")


def _eight_bits(image: Image.Image, upright: Image.Image) -> Image.Image:
    """Scale grey values of 16 bits; Pillow would clip them at 255."""
    values = (np.array(upright) / 257).round().astype(np.uint8)
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == 0:
        values = 255 - values  # zero is white; with fewer bits, Pillow does it
    return Image.fromarray(values)
