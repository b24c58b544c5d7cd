"""Pictures of mixed sizes, as they are found: cameras have few sizes, the web has any."""

from __future__ import annotations

import random

Size = tuple[int, int]  # width and height

_CAMERAS: dict[Size, int] = {  # how often, in the position in which they are mostly held
    (4032, 3024): 10,
    (3264, 2448): 6,
    (4000, 3000): 5,
    (2048, 1536): 4,
    (6000, 4000): 6,
    (5184, 3456): 5,
}
_STANDARD: dict[Size, int] = {  # of the web
    (1024, 768): 6,
    (1080, 1080): 6,
    (1920, 1080): 6,
    (1280, 720): 5,
    (1200, 800): 5,
    (1024, 683): 5,
    (800, 600): 4,
    (1080, 1350): 4,
}
_ASPECTS = (4 / 3, 4 / 3, 3 / 2, 3 / 2, 3 / 2, 1.0, 16 / 9, 1.25)  # of odd sizes, about


def sizes(count: int = 400, seed: int = 3) -> list[Size]:
    """Give so many sizes, always the same ones: of cameras, standard and odd ones of the web."""
    chance = random.Random(seed)
    return [_size(chance) for _ in range(count)]


def _size(chance: random.Random) -> Size:
    kind = chance.random()
    if kind < 0.2:
        width = chance.randint(500, 2400)
        return width, round(width / chance.choice(_ASPECTS) * chance.uniform(0.97, 1.03))
    known = _CAMERAS if kind < 0.65 else _STANDARD
    size = chance.choices(list(known), list(known.values()))[0]
    return size[::-1] if chance.random() < 0.2 else size
