"""Pictures of samples, made on demand: images, what arrays show of them, latents, heat maps."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image

from shardwright.comparing.vectors import even
from shardwright.deriving import images
from shardwright.deriving.images import BadImageError, Picture, Size
from shardwright.encoders.base import pixels
from shardwright.errors import ShardwrightError
from shardwright.looking import latents
from shardwright.looking.latents import Agreement, Numbers, Pair, Preview
from shardwright.looking.sources import Source
from shardwright.recipes import Component
from shardwright.store.records import CROP, Record
from shardwright.verifying.image_places import ends_below

THUMBNAIL, LARGE = 256, 1024  # pixels of the longer side
_PICTURES = ("jpg", "jpeg", "png", "webp")  # members of any tool
_SCALES = (8, 4, 2)  # that a JPEG can be decoded at
_CACHE = 1 << 26  # bytes of finished pictures
_PAIRS = 48  # pictures that a preview is fitted to, or compared with
_CHECKED, _DECODED = 16, 2  # of these, that are compared; a decoder takes seconds for each
_PAIR_SIDE = 512

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Original:
    """The image file of a sample, and which part of it the arrays show."""

    path: str
    size: Size  # of the upright picture
    crop: Box | None
    note: str | None  # what is odd about the file
    is_scalable: bool  # whether it can be decoded at a smaller scale


class Previews:
    """The pictures of one source; safe to use from several threads."""

    def __init__(self, source: Source, folder: Path | None, *, decode: bool) -> None:
        self.source, self._folder, self._decode = source, folder, decode
        self._chosen, self._agreement = cache(self._choose), cache(self._agree)
        self._cache: OrderedDict[object, bytes] = OrderedDict()
        self._held = 0
        self._lock, self._choosing = Lock(), Lock()
        self.latents = [c for c in source.recipe.components if c.map is not None]
        if decode:  # now, when the user can still see an error
            for component in self.latents:
                self.label(component)

    def thumbnail(self, number: int, *, latent: bool = False) -> bytes | None:
        """Give a small JPEG of what the arrays show; None if nothing shows it."""
        return self._kept(("thumbnail", number, latent), lambda: self._thumbnail(number, latent))

    def image(self, number: int) -> bytes | None:
        """Give a JPEG of the complete image, or else of the picture among the members."""
        return self._kept(("image", number), lambda: self._image(number))

    def latent(self, number: int, name: str) -> bytes | None:
        """Give a PNG of a latent."""
        return self._kept(("latent", number, name), lambda: self._latent_png(number, name))

    def heat(self, number: int, name: str) -> bytes | None:
        """Give a PNG of the numbers of a member."""
        return self._kept(("heat", number, name), lambda: self._heat(number, name))

    def label(self, component: Component) -> str | None:
        """Say how the picture of a latent is made; None if there is none."""
        preview = self._preview(component)
        return preview.label if preview else None

    def agreement(self, component: Component) -> Agreement | None:
        """Compare latents with their images and with others; None if unknown."""
        return self._agreement(component)

    def file(self, number: int) -> str | None:
        """Find the image file of a sample."""
        for path in self.source.image_paths(number):
            for place in self._places(path):
                if os.path.isfile(place):
                    return place
        return None

    def original(self, number: int) -> Original | None:
        """Look at the head of the image file of a sample."""
        with suppress(BadImageError, ShardwrightError):
            path = self.file(number)
            if path is None:
                return None
            head, record = images.head(path), self.source.record(number)
            width, height = head.size
            recorded = (record.get("width"), record.get("height"))
            note = None
            if None not in recorded and recorded != (width, height):
                note = f"the file has {width}x{height} pixels, the record says otherwise"
            crop = None if note else _crop(record, head.size)
            return Original(path, head.size, crop, note, head.scalable)
        return None

    def _read(self, found: Original, side: int) -> Image.Image | None:
        """Read an image, upright, and not much larger than this side."""
        fit = (s for s in _SCALES if found.is_scalable and max(found.size) >= 2 * side * s)
        with suppress(BadImageError):
            return _upright(images.read(found.path, next(fit, 1)))
        return None

    def _places(self, path: str) -> Iterator[str]:
        if self._folder is None:
            if self.source.is_trusted:  # a stranger's record may name any file
                yield path
            return
        yield from ends_below(self._folder, path)

    def _thumbnail(self, number: int, latent: bool) -> bytes | None:
        found = None if latent else self._framed(number, THUMBNAIL)
        if found is None and self.latents:
            found = self._latent(number, self.latents[0])
        return None if found is None else _jpeg(found, THUMBNAIL)

    def _framed(self, number: int, side: int) -> Image.Image | None:
        """Show what the arrays show: the picture among the members, else a part of the image."""
        if (picture := self._member_picture(number, side)) is not None:
            return picture
        found = self.original(number)
        image = self._read(found, side) if found else None
        if found is None or image is None or found.crop is None:
            return image
        across, down = image.width / found.size.width, image.height / found.size.height
        left, top, right, bottom = found.crop
        box = (left * across, top * down, right * across, bottom * down)
        size = max(1, round(box[2] - box[0])), max(1, round(box[3] - box[1]))
        return image.resize(size, Image.Resampling.BOX, box)

    def _image(self, number: int) -> bytes | None:
        found = self.original(number)
        image = self._read(found, LARGE) if found else None
        image = image or self._member_picture(number, LARGE)
        return None if image is None else _jpeg(image, LARGE)

    def _member_picture(self, number: int, side: int) -> Image.Image | None:
        names = (n for n in self.source.members(number) if n.rpartition(".")[2] in _PICTURES)
        for name in names:
            member = self.source.member(number, name)
            if isinstance(member.value, bytes):
                with suppress(Exception):  # decoders may raise anything
                    image = Image.open(io.BytesIO(member.value), formats=("JPEG", "PNG", "WEBP"))
                    image.draft("RGB", (side, side))
                    return image.convert("RGB")
        return None

    def _array(self, number: int, name: str) -> Numbers | None:
        """Read an array of a sample; None if it is not there, or damaged."""
        there = name in self.source.members(number)
        value = self.source.member(number, name).value if there else None
        return value if isinstance(value, np.ndarray) else None

    def _latent(self, number: int, component: Component) -> Image.Image | None:
        preview = self._preview(component)
        array = self._array(number, component.suffix) if preview else None
        return Image.fromarray(preview.picture(array)) if preview and array is not None else None

    def _latent_png(self, number: int, name: str) -> bytes | None:
        component = self.source.recipe.by_name.get(name)
        found = self._latent(number, component) if component else None
        if found is None:
            return None
        found.thumbnail((LARGE, LARGE))
        return _png(found)

    def _heat(self, number: int, name: str) -> bytes | None:
        array, component = self._array(number, name), self.source.recipe.arrays.get(name)
        return None if array is None else _png(Image.fromarray(latents.heat(array, component)))

    def _preview(self, component: Component) -> Preview | None:
        with self._choosing:
            return self._chosen(component)

    def _choose(self, component: Component) -> Preview | None:
        settings = self.source.settings.get(component.name, {})
        return latents.choose(
            component, settings, lambda: self._pairs(component, _PAIRS), decode=self._decode
        )

    def _agree(self, component: Component) -> Agreement | None:
        preview = self._preview(component)
        pairs = self._pairs(component, _DECODED if self._decode else _CHECKED)
        return None if preview is None else latents.agreement(preview, pairs)

    def _pairs(self, component: Component, most: int) -> Iterator[Pair]:
        """Give latents with the pixels that they show, of samples all over the source."""
        ready = self.source.table.ready
        for number in ready[even(len(ready), most)].tolist():
            with suppress(ShardwrightError):  # of a damaged sample, which its own page shows
                framed = self._framed(number, _PAIR_SIDE)
                array = self._array(number, component.suffix) if framed else None
                if framed is not None and array is not None:
                    yield array, pixels(framed)

    def _kept(self, key: object, make: Callable[[], bytes | None]) -> bytes | None:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        try:
            made = make()
        except ShardwrightError:  # of a damaged member; the sample's own page says what it is
            made = None
        if made is not None:
            with self._lock:
                self._held += len(made) - len(self._cache.pop(key, b""))
                self._cache[key] = made
                while self._held > _CACHE:
                    self._held -= len(self._cache.popitem(last=False)[1])
        return made


def _crop(record: Record, size: Size) -> Box | None:
    """Read the crop of a record, if it lies within the picture."""
    crop = record.get(CROP)
    if not isinstance(crop, list) or len(crop) != 4:
        return None
    if not all(type(side) in (int, float) for side in crop):
        return None
    left, top, right, bottom = crop
    inside = 0 <= left < right <= size.width and 0 <= top < bottom <= size.height
    return (left, top, right, bottom) if inside else None


def _upright(found: Picture) -> Image.Image:
    """Give the picture without what pads it when it is decoded at a smaller scale."""
    image = found.image
    box = found.place((0, 0, *found.size))
    left, top, right, bottom = map(round, box)
    if (left, top, right, bottom) == (0, 0, *image.size):
        return image
    return image.crop((left, top, min(right, image.width), min(bottom, image.height)))


def _jpeg(image: Image.Image, side: int) -> bytes:
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.convert("RGB").save(out, "jpeg", quality=85)
    return out.getvalue()


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "png")
    return out.getvalue()
