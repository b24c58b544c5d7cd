"""What arrays lose of their pictures: counted by derive for a run, and by status for a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.store.attention import MUCH_CROPPED, MUCH_ENLARGED
from shardwright.summary import Count

if TYPE_CHECKING:
    from shardwright.store.facts import Facts

TOO_LONG = "above_max_tokens_lost"  # the reason of an image that is left out
_PLAIN, _SRGB = "RGB", "RGB, sRGB"  # without a profile, and the start of its usual names


@dataclass
class Most:
    """How many images there are of one kind, and the one of which it is most true."""

    images: int = 0
    most: float = 0.0
    example: str = ""  # an image_id

    def add(self, image_id: str, value: float) -> None:
        """Count one image."""
        self.images += 1
        if value > self.most:
            self.most, self.example = value, image_id

    def join(self, other: Most) -> None:
        """Add what was counted elsewhere."""
        images = self.images + other.images
        self.add(other.example, other.most)
        self.images = images


@dataclass
class Quality:
    """The images of which arrays show less than the file holds, or not as it is."""

    enlarged: Most = field(default_factory=Most)  # times
    cropped: Most = field(default_factory=Most)  # the share that is cut away
    much_enlarged: int = 0  # images of these that need attention
    much_cropped: int = 0
    decoded_smaller: Most = field(default_factory=Most)  # times, by which its sides are
    colour_spaces: dict[str, Count] = field(default_factory=dict)  # other than sRGB
    animated: Count = field(default_factory=lambda: Count(0, ""))  # of which one frame was taken

    def add(self, facts: Facts) -> None:
        """Count one image; what is unknown of it is not counted."""
        if facts.enlarged is not None and facts.enlarged > 1:
            self.enlarged.add(facts.image_id, facts.enlarged)
            self.much_enlarged += facts.enlarged > MUCH_ENLARGED
        if facts.cropped:
            self.cropped.add(facts.image_id, facts.cropped)
            self.much_cropped += facts.cropped > MUCH_CROPPED
        if facts.decoded is not None and facts.decoded.scale > 1:
            self.decoded_smaller.add(facts.image_id, facts.decoded.scale)
        space = facts.colour_space
        if space is not None and space != _PLAIN and not space.startswith(_SRGB):
            self.colour_spaces.setdefault(space, Count(0, facts.image_id)).count += 1
        if facts.animated:
            self._add_animated(Count(1, facts.image_id))

    def join(self, other: Quality) -> None:
        """Add what was counted elsewhere."""
        self.enlarged.join(other.enlarged)
        self.cropped.join(other.cropped)
        self.decoded_smaller.join(other.decoded_smaller)
        self.much_enlarged += other.much_enlarged
        self.much_cropped += other.much_cropped
        for space, count in other.colour_spaces.items():
            self.colour_spaces.setdefault(space, Count(0, count.example)).count += count.count
        self._add_animated(other.animated)

    def _add_animated(self, more: Count) -> None:
        self.animated.count += more.count
        self.animated.example = self.animated.example or more.example
