"""The samples of a task, from what they are made of to what goes into the shard.

The tasks of a build differ only in where their samples come from: from images, here; or from the
shards of another folder (``copying``), which give most of their members as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from shardwright.building import inputs
from shardwright.building.built import Built
from shardwright.building.inputs import Row
from shardwright.deriving.captions import CAPTION
from shardwright.deriving.choices import view_of
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.prepare import Sample
from shardwright.deriving.results import Results, with_tokens
from shardwright.deriving.serving import DIED
from shardwright.recipes import Component, Recipe
from shardwright.shards.format import tar
from shardwright.shards.format.record_members import mask_bytes
from shardwright.store import records
from shardwright.store.facts import Facts, image_file
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import Record, own_fields

INPUT = "__input__"  # the field of a line that says where an input is
_COMPRESSED = 8  # times smaller than its pixels is a picture, or more

Texts = dict[str, str | None]
SettingsOf = Mapping[str, Mapping[str, Any]]  # by component


@dataclass
class Planned(Sample, ABC):
    """A sample of a task."""

    @abstractmethod
    def settle(self, results: Results) -> None:
        """Check what was made, and that it was made from what was planned."""

    @abstractmethod
    def described(self, results: Results) -> tuple[Record, Facts]:
        """Give its record, and what is known of it."""

    def built(self) -> Built | None:
        """Give the image that it was made of, if it was read."""
        return None

    @property
    def died(self) -> bool:
        """Whether a worker has died at it."""
        return self.failure is not None and self.failure[0] == DIED


class Inputs(Protocol):
    """What the samples of a task are made of; small, and picklable."""

    def __len__(self) -> int:
        """Count the samples."""

    def samples(self) -> Iterator[Planned]:
        """Give the samples, to be made."""

    def nbytes(self, settings: SettingsOf) -> int:
        """Estimate the bytes of their members in a tar."""


class Input(NamedTuple):
    """One line: where an image is, and what goes into its record."""

    row: Row
    texts: Texts
    columns: Record


def parse(line: bytes, recipe: Recipe) -> Input:
    """Read one line of the inputs."""
    record = records.parse(line)
    row = msgspec.convert(record.pop(INPUT), Row)
    texts = {name: record.get(name) for name in dict.fromkeys((CAPTION, *recipe.texts))}
    own = own_fields(recipe)
    return Input(row, texts, {n: v for n, v in record.items() if n not in own})


@dataclass(kw_only=True)
class FromImage(Planned):
    """A sample that is made of an image and its texts."""

    row: Row

    def settle(self, results: Results) -> None:
        if not self.died and (why := inputs.changed(self.row)):
            self.failure = why
        elif self.failure is None and self.size != (self.row.width, self.row.height):
            self.failure = (inputs.CHANGED, "its size is not the one that was planned")
        results.check(self)

    def described(self, results: Results) -> tuple[Record, Facts]:
        record, known, made = results.record(self), Facts(self.source.image_id), self.made or {}
        assert record is not None
        if any(component.source == "image" for component in made):
            known = results.seen(self, known, made)
        return record, with_tokens(self, known) if self.tokens_lost else known

    def built(self) -> Built | None:
        row, file = self.row, self.image
        with suppress(OSError):  # then it is not on record
            file = file or image_file(self.source.place)  # which no component was made of
        if file is None:
            return None
        state = (row.bytes, row.mtime_ns)
        return Built(row.image_id, row.path, *state, file.bytes, file.xxh3)


@dataclass(frozen=True)
class Images:
    """Images, by their lines in the plan, which a worker elsewhere has no file of."""

    recipe: Recipe
    lines: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.lines)

    def samples(self) -> Iterator[FromImage]:
        recipe = self.recipe
        for line in self.lines:
            row, texts, columns = parse(line, recipe)
            source, make, text = inputs.source_of(row), recipe.components, bool(recipe.captions)
            sample = FromImage(source, make, None, None, [], text, texts, columns, row=row)
            sample.size = Size(row.width, row.height)  # so that nobody has to look again
            yield sample

    def nbytes(self, settings: SettingsOf) -> int:
        return sum(self._nbytes(line, settings) for line in self.lines)

    def _nbytes(self, line: bytes, settings: SettingsOf) -> int:
        recipe = self.recipe
        row = parse(line, recipe).row
        members = [len(line)]
        for component in recipe.components:
            found = Size(row.width, row.height)
            if component.follows_picture:
                view = view_of(component, recipe, dict(settings[component.name]))
                try:
                    found = view.frame(found).size
                except BadImageError:  # left out at work
                    continue
            members += member_bytes(component, found)
        return sum(map(tar.member_bytes, members))


def member_bytes(component: Component, size: Size) -> Iterator[int]:
    """Estimate the bytes of a component's members, for what it shows of a picture."""
    nbytes = component.nbytes(component.shape_for(*size)) + HEADER_BYTES
    if not component.is_array and component.extension != ".png":
        nbytes //= _COMPRESSED
    yield nbytes
    if component.mask is not None:
        yield mask_bytes(component.mask)
