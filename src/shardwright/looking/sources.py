"""What a viewer can be opened on: something with samples, each with a record and members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from shardwright.buckets import Bucket, is_bucket
from shardwright.comparing.copies import image_vector
from shardwright.looking.table import Table
from shardwright.recipes import Component, Recipe
from shardwright.store.provenance import Settings
from shardwright.store.records import Record

Value = NDArray[Any] | bytes


@dataclass(frozen=True)
class BucketCount:
    """The samples of a bucket, in a part of a split."""

    bucket: str
    part: str | None
    samples: int
    bytes: int
    shards: int | None  # None in a store


@dataclass(frozen=True)
class Member:
    """A file of a sample: an array or a picture."""

    name: str  # the suffix that it has in a shard
    component: Component | None  # None for a mask, and if the recipe is not known
    value: Value | None  # the numbers of an array, the bytes of a picture; None if it is damaged
    bytes: int
    place: str
    xxh3: str | None = None  # that is on record
    fault: str | None = None


class Source(ABC):
    """A store, or shards; samples are numbered from 0 in the order of its table."""

    kind: ClassVar[str]
    table: Table
    buckets: list[BucketCount]
    bytes_estimated = False  # whether those of the buckets are
    is_trusted = True  # whether its records may name files of this machine

    def __init__(self, name: str, recipe: Recipe, settings: Mapping[str, Settings]) -> None:
        """Take its name as the user gave it, and how each component was made, if recorded."""
        self.name, self.recipe, self.settings = name, recipe, settings
        self.vector = image_vector(recipe)  # the component by which images are compared
        self.notes: list[str] = []  # about the source, for the user

    def image_paths(self, number: int) -> list[str]:
        """Name where the image of a sample may be, most likely first."""
        path = self.record(number).get("image_path")
        return [path] if isinstance(path, str) else []

    @abstractmethod
    def record(self, number: int) -> Record:
        """Read the record of a sample."""

    @abstractmethod
    def place(self, number: int) -> str:
        """Say where a sample is."""

    @abstractmethod
    def members(self, number: int) -> list[str]:
        """Name the members of a sample."""

    @abstractmethod
    def member(self, number: int, name: str) -> Member:
        """Read a member of a sample."""

    @abstractmethod
    def vectors(self, component: Component) -> Iterator[NDArray[Any]]:
        """Read a vector of every sample in blocks, NaN where there is none."""


def by_size(bucket: str) -> tuple[bool, int, int, str]:
    """Order buckets by their sides; what is not a size comes last."""
    if not is_bucket(bucket):
        return True, 0, 0, bucket
    size = Bucket.parse(bucket)
    return False, size.width, size.height, bucket
