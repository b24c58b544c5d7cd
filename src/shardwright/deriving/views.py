"""What an encoder sees of a picture, as a value; and looking at a picture through several of them.

Looking needs no encoder and no store, so that it can be done in another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image

from shardwright.buckets import Bucket, choose
from shardwright.deriving import images
from shardwright.deriving.images import BadImageError, Picture, Size
from shardwright.encoders.base import Box, PictureWriter, Preparing, pixels
from shardwright.encoders.picture import Writer
from shardwright.recipes import Recipe
from shardwright.storage import extents
from shardwright.storage.extents import Extent
from shardwright.store.facts import Decoded, ImageFile, image_file
from shardwright.store.provenance import FAST

_SCALES = (8, 4, 2)  # that a JPEG can be decoded at, besides 1


@dataclass(frozen=True)
class Frame:
    """The part of a picture that an array shows, and the size it is resized to."""

    box: Box
    size: Size

    @property
    def is_resized(self) -> bool:
        """Whether its pixels are not those of the picture."""
        left, top, right, bottom = self.box
        return (right - left, bottom - top) != self.size

    @property
    def enlarged(self) -> float:
        """Say how many times the part is enlarged; 1 if it is not."""
        left, top, right, bottom = self.box
        return max(1.0, self.size.width / (right - left), self.size.height / (bottom - top))

    def cropped(self, size: Size) -> float:
        """Give the share of a picture of this size that is cut away."""
        left, top, right, bottom = self.box
        return 1 - (right - left) * (bottom - top) / (size.width * size.height)


@dataclass(frozen=True)
class View:
    """What decides the input of an encoder; equal views of a picture show the same pixels."""

    fit: str = "original"
    decode: str | None = None  # FAST, or None
    divisors: tuple[int, int] = (1, 1)  # with fit "original": of its width and height
    buckets: tuple[Bucket, ...] = ()  # with fit "bucket"
    levels: tuple[int, ...] = ()
    name: str = field(default="", compare=False)  # for errors
    prepare: Preparing | None = field(default=None, compare=False)  # None: it sees the pixels
    writer: PictureWriter | None = field(default=None, compare=False)  # of a picture file

    @property
    def is_portable(self) -> bool:
        """Whether it can be sent to another process: not with a writer of the user's own."""
        return self.writer is None or type(self.writer) is Writer

    def frame(self, size: Size) -> Frame:
        """Choose the part of a picture that it shows.

        ``original`` keeps the picture, except for the remainder at the right and bottom when its
        sides are divided. ``bucket`` takes the largest centred part of the bucket's shape.
        """
        if self.fit == "bucket":
            return _fitted(size, choose(self.buckets, self.levels, *size))
        width, height = (side - side % by for side, by in zip(size, self.divisors, strict=True))
        if not width or not height:
            detail = f"{size.width}x{size.height} pixels are too few for {self.name}"
            raise BadImageError("too_small", detail)
        return Frame((0, 0, width, height), Size(width, height))

    def scale(self, size: Size) -> int:
        """Choose the scale that a JPEG is decoded at: not below the size that is needed."""
        frame = self.frame(size)
        left, top, right, bottom = frame.box
        width, height = frame.size
        if self.prepare is not None and frame.size == size:
            width, height = self.prepare.needs(width, height)
        return next(
            (s for s in _SCALES if right - left >= width * s and bottom - top >= height * s), 1
        )


class Look(NamedTuple):
    """What was seen of a picture."""

    size: Size  # of the picture in its file, upright
    file: ImageFile | None  # that was read
    unapplied: str | None  # why its colour profile was not applied, if it was not
    decoded: Decoded  # at the largest scale that was needed
    colour_space: str  # of the file
    animated: bool  # whether only the first of its frames was taken
    # For each view: what was prepared or, where it says nothing, the pixels; or a picture file.
    made: tuple[Any, ...]


def look(place: Extent, views: Sequence[View]) -> Look:
    """Read a picture once, or once for each scale, and prepare what each view shows of it."""
    file = None
    with suppress(OSError):  # reading it gives the reason
        file = image_file(place) if extents.is_regular(place) else None
    scales = [1] * len(views)
    if any(view.decode == FAST for view in views):
        head = images.head(place)
        if head.scalable:
            scales = [view.scale(head.size) if view.decode == FAST else 1 for view in views]
    made: dict[int, Any] = {}
    for scale in sorted(set(scales), reverse=True):  # the largest picture last
        picture = images.read(place, scale)
        shown: dict[View, Image.Image] = {}
        for number, view in enumerate(views):
            if scales[number] != scale:
                continue
            try:
                if view not in shown:
                    shown[view] = _shown(picture, view)
                made[number] = _made(place, file, picture, view, shown[view])
            except BadImageError:
                raise
            except Exception as error:  # a model's own code may raise anything
                why = str(error) or type(error).__name__
                raise BadImageError("not_prepared", f"{view.name}: {why}") from error
    return Look(
        picture.size,
        file,
        picture.unapplied,
        Decoded(*picture.image.size, picture.scale),
        picture.colour_space,
        picture.animated,
        tuple(made[number] for number in range(len(views))),
    )


def original(place: Extent, file: ImageFile | None) -> bytes | None:
    """Read an image as it is in its file; None if it is no longer the one that was decoded."""
    with suppress(OSError):
        data = extents.read(place)
        if file and xxhash.xxh3_64_hexdigest(data) == file.xxh3:
            return data
    return None


def left_out(size: Size, recipe: Recipe) -> tuple[str, str] | None:
    """Say why the recipe's selection leaves an image out: the reason's name and a detail."""
    limits, (width, height) = recipe.selection, size
    if limits.min_side is not None and min(size) < limits.min_side:
        return "below_min_side", f"{width}x{height} pixels, and min_side is {limits.min_side}"
    if recipe.fit != "bucket" or (limits.max_upscale, limits.max_crop) == (None, None):
        return None
    frame = _fitted(size, recipe.bucket_for(*size))
    upscale, crop = frame.enlarged, frame.cropped(size)
    if limits.max_upscale is not None and upscale > limits.max_upscale:
        detail = f"enlarged {upscale:.2f} times, and max_upscale is {limits.max_upscale}"
        return "above_max_upscale", detail
    if limits.max_crop is not None and crop > limits.max_crop:
        return "above_max_crop", f"{crop:.0%} cropped, and max_crop is {limits.max_crop}"
    return None


def _fitted(size: Size, bucket: Bucket) -> Frame:
    """Find the largest centred part of a bucket's shape; it keeps fractions of pixels."""
    target = Size(bucket.width, bucket.height)
    wide = min(Fraction(size.width), Fraction(size.height * bucket.width, bucket.height))
    high = min(Fraction(size.height), Fraction(size.width * bucket.height, bucket.width))
    x, y = (size.width - wide) / 2, (size.height - high) / 2
    if (
        wide == target.width and high == target.height
    ):  # where only pixels are cut off, the others stay as they are
        x, y = Fraction(x // 1), Fraction(y // 1)
    return Frame((float(x), float(y), float(x + wide), float(y + high)), target)


def _shown(picture: Picture, view: View) -> Image.Image:
    """Cut a picture to its frame, and resize it to the frame's size."""
    image, frame = picture.image, view.frame(picture.size)
    if frame.is_resized:
        return image.resize(frame.size, Image.Resampling.LANCZOS, picture.place(frame.box))
    if frame.size == picture.size:  # it may have been decoded at a smaller scale
        return image
    left, top, right, bottom = map(int, frame.box)
    return image.crop((left, top, right, bottom))


def _made(
    place: Extent, file: ImageFile | None, picture: Picture, view: View, image: Image.Image
) -> NDArray[Any] | bytes:
    """Prepare what a view shows, or write its file."""
    frame = view.frame(picture.size)
    if view.writer is not None:
        kept = picture.plain and frame.size == picture.size
        return view.writer.write(pixels(image), original(place, file) if kept else None)
    if view.prepare is None:
        return pixels(image)
    padded = picture.scale > 1 and not frame.is_resized
    box = picture.place(frame.box) if padded else None
    return np.ascontiguousarray(view.prepare(image, box))
