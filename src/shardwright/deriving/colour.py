"""Colour: converts pictures to sRGB by the ICC profile in their file."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms

_GREY = ("1", "L", "LA", "La")
_FLAGS = 0x2000 | 0x0040  # map black to black, and keep no state between calls, for the threads
_EXACT = 0x0100  # compute each value instead of interpolating; slow
_LONGEST_NAME = 100  # characters: a profile may call itself anything
_NEAR = 1  # levels of 255: a profile that changes no colour by more counts as sRGB


@dataclass(frozen=True)
class Conversion:
    """What a profile does to pictures of one mode."""

    mode: str = "RGB"  # that they are converted to first
    apply: Callable[[Image.Image], Image.Image] | None = None  # None if it changes nothing
    usable: bool = True

    def __call__(self, image: Image.Image) -> Image.Image:
        """Give a picture in sRGB; alpha is left out."""
        if image.mode != self.mode:  # or Pillow would copy it
            image = image.convert(self.mode)
        return image if self.apply is None else self.apply(image)


@lru_cache(maxsize=32)  # a folder has few, and one may take a megabyte
def conversion(profile: bytes, mode: str) -> Conversion:
    """Find what a profile does to pictures of a mode.

    A profile that is broken, or made for pictures of another kind, is not usable: the picture is
    treated as sRGB, as viewers do.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if space == "GRAY" and mode in _GREY:
            ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
            # In a neutral grey, red equals green and blue.
            levels = np.array(_transform(source, "L", _FLAGS | _EXACT)(ramp))[0, :, 0].tolist()
            if max(abs(level - grey) for grey, level in enumerate(levels)) <= _NEAR:
                return Conversion()
            return Conversion("L", lambda image: image.point(levels).convert("RGB"))
        if space != ("CMYK" if mode == "CMYK" else "RGB"):
            return Conversion(usable=False)
        found = Conversion(space, _transform(source, space, _FLAGS))
        return Conversion() if space == "RGB" and _is_srgb(found) else found
    except Exception:  # Pillow and its library may raise anything
        return Conversion(usable=False)


@lru_cache(maxsize=32)
def profile_name(profile: bytes) -> str:
    """Give what a profile calls itself."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        name = source.profile.profile_description or ""
    except Exception:  # Pillow and its library may raise anything
        return "broken profile"
    printable = "".join(c if c.isprintable() else " " for c in name)
    return " ".join(printable.split())[:_LONGEST_NAME] or "profile without a name"


def _transform(
    source: ImageCms.ImageCmsProfile, mode: str, flags: int
) -> Callable[[Image.Image], Image.Image]:
    target = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
    # As a number, because Pillow 10.1 has no names for them.
    built = ImageCms.buildTransform(source, target, mode, "RGB", intent, flags)  # type: ignore[arg-type]
    return built.apply


def _is_srgb(found: Conversion) -> bool:
    levels = np.linspace(0, 255, 18).astype(np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(18, -1, 3)
    changed = np.array(found(Image.fromarray(grid)))
    return bool(np.abs(changed.astype(int) - grid).max() <= _NEAR)
