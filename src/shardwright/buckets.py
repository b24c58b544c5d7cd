"""The aspect buckets: the few picture sizes a trainer batches by."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

# Bounded, so that a bucket can never be a path, and unique, so that 1024x1024 has one spelling.
_NAME = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", re.ASCII)
_MOST_WIDTHS = 1000  # of the buckets of one resolution


@dataclass(frozen=True, order=True)
class Bucket:
    """A picture size, written ``WIDTHxHEIGHT``."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def aspect(self) -> float:
        """Its width divided by its height."""
        return self.width / self.height

    @property
    def elongation(self) -> float:
        """Its longer side divided by its shorter one."""
        return max(self.width, self.height) / min(self.width, self.height)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read ``WIDTHxHEIGHT``; anything else is a ValueError."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not a bucket; write WIDTHxHEIGHT, for example 832x1216")
        return cls(int(match[1]), int(match[2]))


def choose(buckets: Sequence[Bucket], levels: Sequence[int], width: int, height: int) -> Bucket:
    """Choose the bucket with the aspect ratio nearest to a picture's; the first on a tie.

    Of several resolutions, the last for which the picture need not be enlarged, or the first.
    ``levels`` says how many of the buckets each has.
    """
    if width < 1 or height < 1:
        raise ValueError(f"{width}x{height} is not the size of a picture")
    first, fitting = 0, None
    for count in levels or (len(buckets),):
        level, first = buckets[first : first + count], first + count
        nearest = min(level, key=lambda bucket: abs(width / height - bucket.aspect))
        if fitting is None or (width >= nearest.width and height >= nearest.height):
            fitting = nearest
    assert fitting is not None
    return fitting


@lru_cache(maxsize=4096)
def is_bucket(name: str) -> bool:
    """Whether a string is written as a bucket, in a recipe or not."""
    return _NAME.fullmatch(name) is not None


def generate(resolution: int, step: int, max_aspect: float) -> list[Bucket]:
    """Make buckets of about ``resolution`` squared pixels, the square first.

    Their sides are multiples of ``step``; no side is more than ``max_aspect`` times the other. For
    each width, the height is the largest with which the area is not exceeded.
    """
    area, side = resolution**2, resolution // step * step
    longest = math.isqrt(int(area * max_aspect))
    if not side:
        raise ValueError(f"{step:,} is more than the resolution {resolution:,}")
    if longest // step > _MOST_WIDTHS:
        raise ValueError(f"{step:,} gives {longest // step:,} widths, more than {_MOST_WIDTHS:,}")
    found = {Bucket(side, side)}
    for width in range(step, longest + 1, step):
        height = area // width // step * step
        if height and max(width, height) <= max_aspect * min(width, height):
            found |= {Bucket(width, height), Bucket(height, width)}
    return sorted(found, key=lambda bucket: (bucket.elongation, bucket.width))
