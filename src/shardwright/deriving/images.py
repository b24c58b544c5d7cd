"""Reading pictures: upright, in RGB, of a bounded size, perhaps decoded at a smaller scale."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NamedTuple

import numpy as np
from PIL import (
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
)

from shardwright.deriving.colour import Conversion, conversion, profile_name
from shardwright.deriving.sources import FORMAT_OF
from shardwright.encoders.base import Box
from shardwright.pictures import PIXEL_LIMIT
from shardwright.storage import extents
from shardwright.storage.extents import HEAD, Extent, FarError
from shardwright.store.facts import image_file
from shardwright.store.faults import is_side
from shardwright.store.records import Record

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
_PNG_TEXTS = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")  # chunks that may hold EXIF or XMP data
_PNG_END = b"\0\0\0\0IEND\xae\x42\x60\x82"
_TAIL = 1 << 16  # bytes: they begin there if they come after the pixels
_ORIENTATION = 0x0112
_BITS = 258  # per sample, in a TIFF
_PHOTOMETRIC = 262  # what its values mean: 0 if white is zero
DECODER_DIED = "decoder_died"  # the reason of an image at which the processes that read it die
_QUARTER_TURNS = (5, 6, 7, 8)  # the orientations that swap the sides,
_LEFT_LAST = (2, 3, 6, 7)  # those in which the left side comes last in the file,
_TOP_LAST = (3, 4, 7, 8)  # and those in which the top does


class BadImageError(ValueError):
    """A file without a usable picture; ``args`` are the reason's name and a detail."""


class Size(NamedTuple):
    """The sides of an upright picture."""

    width: int
    height: int


def recorded_size(record: Record | None) -> Size | None:
    """Give the size of the picture in a record, if it has one."""
    width, height = (record or {}).get("width"), (record or {}).get("height")
    return Size(width, height) if is_side(width) and is_side(height) else None


class Head(NamedTuple):
    """What the head of a file tells."""

    size: Size  # upright
    scalable: bool  # whether it can be decoded at a smaller scale


class Picture(NamedTuple):
    """A picture in sRGB, perhaps decoded at a smaller scale."""

    image: Image.Image
    size: Size  # of the picture in its file
    scale: int  # that the image is smaller by
    left: float  # where the picture begins in the image
    top: float
    unapplied: str | None  # why its colour profile was not applied, if it was not
    plain: bool  # whether these are the pixels of the file, as any reader would see them
    colour_space: str  # of the file: Pillow's mode, and what its profile calls itself
    animated: bool  # whether the file has more frames, or pages, than this first one

    def place(self, box: Box) -> Box:
        """Find a part of the picture in the image."""
        left, top, right, bottom = (side / self.scale for side in box)
        return (self.left + left, self.top + top, self.left + right, self.top + bottom)


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


def fetched(place: Extent, *, head: bool = False) -> Extent:
    """Read a picture at a URL, or its head, into memory, so that it is asked for once."""
    try:
        return extents.fetched(place, HEAD) if head else extents.fetched(place)
    except FarError as error:
        raise BadImageError(error.reason, str(error.strerror)) from None


def head(place: Extent) -> Head:
    """Look at the head of a file."""
    with _opened(place, head=True) as image:
        # Of a TIFF, Pillow gives the size that it will have when it is upright.
        turned = image.format != "TIFF" and _exif(image).get(_ORIENTATION) in _QUARTER_TURNS
        size = Size(image.height, image.width) if turned else Size(*image.size)
        return Head(size, isinstance(image, JpegImagePlugin.JpegImageFile))


def _exif(image: Image.Image) -> Image.Exif:
    """Read the EXIF data; Pillow would decode a PNG to see whether they come after its pixels."""
    if isinstance(image, PngImagePlugin.PngImageFile) and image.fp is not None:
        at, size = image.fp.tell(), image.fp.seek(0, os.SEEK_END)
        image.fp.seek(max(at, size - _TAIL))
        tail = image.fp.read()
        image.fp.seek(at)
        if tail.endswith(_PNG_END) and not any(kind in tail for kind in _PNG_TEXTS):
            return Image.Image.getexif(image)
    return image.getexif()


def measure(place: Extent) -> Size:
    """Give the size of a picture, upright, from the head of its file."""
    return head(place).size


def read(place: Extent, scale: int = 1) -> Picture:
    """Read a picture: orientation applied, any mode to sRGB, alpha over white.

    ``scale`` is 2, 4 or 8 to decode a JPEG at a half, a quarter or an eighth of its sides. Nothing
    is copied that is neither turned nor converted.
    """
    with _opened(place) as image:
        _require_white(image)
        width, height = image.size
        if scale > 1 and not image.draft(None, (width // scale, height // scale)):
            scale = 1
        # Counted first, because counting discards what is loaded.
        mode = image.mode
        plain = mode == "RGB" and getattr(image, "n_frames", 1) == 1
        # The further pictures of an MPO are previews and depth maps of the first.
        animated = image.format != "MPO" and getattr(image, "is_animated", False)
        image.load()
        orientation = image.getexif().get(_ORIENTATION, 1)
        ImageOps.exif_transpose(image, in_place=True)
        upright = _eight_bits(image) if image.mode.startswith("I") else image
        profile = image.info.get("icc_profile")
        convert = conversion(profile, upright.mode) if profile else Conversion()
        size = Size(*upright.size)
        if scale > 1:
            size = Size(height, width) if orientation in _QUARTER_TURNS else Size(width, height)
        return Picture(
            image=_rgb(upright, convert),
            size=size,
            scale=scale,
            # Where the sides cannot be divided, the last pixels in the file are padded.
            left=upright.width - size.width / scale if orientation in _LEFT_LAST else 0,
            top=upright.height - size.height / scale if orientation in _TOP_LAST else 0,
            unapplied=None if convert.usable else "profile_not_usable",
            plain=plain and orientation == 1 and not convert.apply,
            colour_space=f"{mode}, {profile_name(profile)}" if profile else mode,
            animated=animated,
        )


@contextmanager
def _opened(place: Extent, *, head: bool = False) -> Iterator[Image.Image]:
    """Open a picture, and turn any error into a reason."""
    try:
        if not extents.is_regular(place):
            raise BadImageError("unreadable", "not a regular file")
        named = _format_by_name(place)
        if named == "RAW":  # most are TIFF files, of which Pillow would read a thumbnail
            raise BadImageError("format_not_readable", _INSTEAD[named])
        formats = (*_READABLE, named) if named == _BY_NAME else _READABLE
        with (
            extents.opened(place, head=head) as file,
            Image.open(file, formats=formats) as image,
        ):
            if image.width * image.height > PIXEL_LIMIT:
                detail = f"{image.width}x{image.height} is more than {PIXEL_LIMIT:,} pixels"
                raise BadImageError("too_large", detail)
            yield image
    except BadImageError:
        raise
    except UnidentifiedImageError as error:
        format_ = _format_by_content(place) or _format_by_name(place)
        if format_ is None or format_ in (*_READABLE, _BY_NAME):
            if why := _unread(place, error, head=head):
                raise BadImageError("unreadable", why) from None
            detail = f"cannot identify image file {str(place)!r}"  # Pillow knows no name
            raise BadImageError("broken_image", detail) from None
        detail = _INSTEAD.get(format_, "save it as PNG, TIFF or JPEG")
        raise BadImageError("format_not_readable", detail) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImageError("too_large", f"more than {PIXEL_LIMIT:,} pixels") from None
    except MemoryError:
        raise BadImageError("too_large", "not enough memory to decode it") from None
    except FarError as error:
        raise BadImageError(error.reason, str(error.strerror)) from None
    except Exception as error:  # decoders may raise anything
        if why := _unread(place, error, head=head):
            raise BadImageError("unreadable", why) from None
        raise BadImageError("broken_image", str(error) or type(error).__name__) from None


def _unread(place: Extent, error: Exception, *, head: bool) -> str | None:
    """Say why bytes could not be read, if that is the cause of an error and not what they are.

    Of decoders, OSErrors have no number; a seek to where a broken file points is invalid.
    """
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return error.strerror or str(error)
    if head and not extents.is_at_hand(place):  # each request takes time and costs money
        return None
    try:
        image_file(place)  # some decoders read by themselves, others keep the cause to themselves
    except OSError as unread:
        return unread.strerror or str(unread)
    return None


def _readable() -> tuple[str, ...]:
    """Name the formats that can be read here, with the plug-ins that are installed."""
    Image.init()
    with suppress(Exception):  # a plug-in may be missing or broken
        import_module("pillow_heif").register_heif_opener()
    with suppress(Exception):
        import_module("pillow_jxl")
    return tuple(name for name in _FORMATS + _PLUGGED if name in Image.OPEN)


_READABLE = _readable()


def _format_by_name(place: Extent) -> str | None:
    return FORMAT_OF.get(os.path.splitext(str(place))[1].lower())


def _format_by_content(place: Extent) -> str | None:
    """Recognise the formats that need a plug-in; they often have the suffix of another."""
    try:
        head = extents.begin(place, 12)
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


def _rgb(image: Image.Image, convert: Conversion) -> Image.Image:
    if not image.has_transparency_data:
        return convert(image)
    image = image.convert("RGBA")
    over = convert(image)
    over.putalpha(image.getchannel("A"))
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, over).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale grey values of 16 bits; Pillow would clip them at 255."""
    values = (np.array(image) / 257).round().astype(np.uint8)
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == 0:
        values = 255 - values  # zero is white; with fewer bits, Pillow does it
    return Image.fromarray(values)
