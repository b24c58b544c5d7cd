"""What needs attention in a store or in shards: what ``status`` lists and ``look`` links to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwright.progress import quantity

ENLARGED = "enlarged"
CROPPED = "cropped"
TRUNCATED = "truncated"
IDENTICAL = "identical-file"
NEAR_DUPLICATE = "near-duplicate"
OUTLIER = "outlier"

MUCH_ENLARGED = 1.25  # times; a picture that is enlarged more than that looks soft
MUCH_CROPPED = 0.25  # of the picture; more than that may cut off heads


@dataclass(frozen=True)
class Attention:
    """One thing that somebody should look at, and the samples it is about."""

    text: str
    count: int
    flag: str | None = None  # that these samples have,
    state: str | None = None  # or their state
    example: str = ""  # an image_id


def not_ready(reasons: Mapping[str, int]) -> Iterator[Attention]:
    """List what is not ready or has failed, by reason."""
    for reason, count in reasons.items():
        verb = "is" if count == 1 else "are"
        text = f"{quantity(count, 'images')} {verb} not ready: {reason.replace('_', ' ')}"
        yield Attention(text, count, state=reason)


def truncated(component: str, count: int, example: str = "") -> Iterator[Attention]:
    """List captions that were cut."""
    if count:
        verb = "is" if count == 1 else "are"
        text = f"{quantity(count, 'captions')} {verb} cut off: longer than {component} reads"
        yield Attention(text, count, TRUNCATED, example=example)


def much(flag: str, count: int, most: float, example: str = "") -> Iterator[Attention]:
    """List pictures that are enlarged a lot, or of which a lot is cut away."""
    how = {
        ENLARGED: f"enlarged more than {MUCH_ENLARGED} times, up to {most:.2f}",
        CROPPED: f"cropped by more than {MUCH_CROPPED:.0%}, up to {most:.0%}",
    }
    if count:
        yield Attention(f"{quantity(count, 'images')} {how[flag]}", count, flag, example=example)
