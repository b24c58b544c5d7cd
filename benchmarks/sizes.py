"""How much is asked: the one place to balance what is learned against the time it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of all questions; several go from small to large, so that growth can be seen."""

    rounds: int
    asides: bool  # whether to ask also cold, and with another number of workers
    start: int  # records
    scan: tuple[int, ...]  # records
    pack: tuple[int, ...]  # samples; asides are at the last but one
    read: int  # samples
    verify: int  # samples
    migrate: tuple[int, ...]  # records
    derive: int  # images
    megapixels: tuple[int, ...]  # of photographs
    reading: int  # photographs
    large: int  # photographs of the last size, for derive
    fill: int  # images of mixed sizes
    duplicates: tuple[int, ...]  # vectors
    planning: tuple[int, ...]  # rows
    pictures: int  # to train on
    steps: int  # of training


USUAL = Sizes(
    rounds=5,
    asides=True,
    start=10,
    scan=(10_000, 100_000, 1_000_000),
    pack=(300, 1_000, 3_000),
    read=1_000,
    verify=3_000,
    migrate=(10_000, 60_000),
    derive=240,
    megapixels=(4, 12),
    reading=12,
    large=96,
    fill=400,
    duplicates=(20_000, 200_000, 1_000_000),
    planning=(1_000_000, 10_000_000),
    pictures=1_200,
    steps=300,
)
QUICK = Sizes(
    rounds=1,
    asides=False,
    start=10,
    scan=(1_000, 10_000),
    pack=(100, 300),
    read=300,
    verify=300,
    migrate=(1_000,),
    derive=24,
    megapixels=(4,),
    reading=3,
    large=12,
    fill=16,
    duplicates=(2_000, 21_000),
    planning=(10_000,),
    pictures=100,
    steps=10,
)
