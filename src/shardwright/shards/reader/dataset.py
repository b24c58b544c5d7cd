"""A dataset of samples: it maps the shards and decodes only what is asked for."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from shardwright.errors import UsageError
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX
from shardwright.shards.reader.batches import Batches, BatchSettings, Epochs, SmallBuckets
from shardwright.shards.reader.catalog import ComponentInfo, EmptyCaption, read_ids
from shardwright.shards.reader.records import RecordColumn, read_columns
from shardwright.shards.reader.repeats import Repeats, factors
from shardwright.shards.reader.stacking import Tokens
from shardwright.shards.reader.view import Sample, View
from shardwright.store.arrays import widened
from shardwright.validate import integer

_GROUP = 16  # samples read at a time when all are read in order
_SEVERAL = -1  # the number of an id that several samples have


class Dataset:
    """The samples of a shard folder, in file order, as ``shardwright.open`` returns them.

    ``dataset[i]`` is a dict: ``json`` (a dict), every array under its suffix (``NAME.npy``) and
    ``__key__``. Arrays map the shard: they are read-only and not copied; only bfloat16 becomes
    float32. Pictures are bytes. A dataset can be pickled and forked; every process maps the shards
    for itself.

    Every sample that is read is the one the index names. If a local shard is replaced or written
    to while the dataset is in use, the next read of it is an error; at a URL only if this sample
    is no longer at this place. Do not truncate a shard in place while arrays map it: touching such
    an array ends the process, as with any mapped file.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._columns: dict[str, RecordColumn] = {}  # those that were asked for

    def __len__(self) -> int:
        return len(self._view.numbers)

    def __repr__(self) -> str:
        samples, names = quantity(len(self), "samples"), ", ".join(self.field_names)
        return f"<shardwright dataset {self._view.folder.name}: {samples} of {names}>"

    def __getitem__(self, position: int) -> Sample:
        try:
            number = self._view.numbers[operator.index(position)]
        except IndexError:
            raise IndexError(f"sample {position} of {len(self)}") from None
        return next(self._widen(self._view.samples([int(number)])))

    def __iter__(self) -> Iterator[Sample]:
        return self._widen(self._view.in_order(_GROUP))

    def _widen(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        return map(self._widened, samples) if self._view.halves else samples

    def _widened(self, sample: Sample) -> Sample:
        for field in self._view.halves:
            self._view.require_bits(field, sample[field])
            sample[field] = widened(sample[field])
        return sample

    @property
    def field_names(self) -> tuple[str, ...]:
        """The members of every sample."""
        return self._view.fields

    @property
    def components(self) -> Mapping[str, ComponentInfo]:
        """What each component is and how it was made, by name; empty without a manifest."""
        return self._view.catalog.components

    @cached_property
    def empty(self) -> EmptyCaption:
        """The arrays and masks of the empty caption, by field, as in a sample."""
        view = self._view
        return EmptyCaption(view.folder, view.catalog.recipe, view.catalog.empty)

    @property
    def buckets(self) -> dict[str, int]:
        """The number of samples in each bucket."""
        return {
            bucket: len(numbers)
            for bucket, numbers in self._view.catalog.by_bucket(self._view.numbers).items()
        }

    def bucket(self, name: str) -> Dataset:
        """View the samples of one bucket."""
        view, found = self._view, self._view.catalog.by_bucket(self._view.numbers)
        if name not in found:
            raise UsageError(f"bucket {name}: not here", fix=f"there are {', '.join(found)}")
        return Dataset(View(view.folder, view.catalog, found[name], view.fields))

    def fields(self, *names: str) -> Dataset:
        """View some members of every sample, so that the others are never read."""
        view, known = self._view, ", ".join(self.field_names)
        if not names:
            raise UsageError("fields: no name given", fix=f"there are {known}")
        for name in names:
            if name not in self.field_names:
                raise UsageError(f"field {name}: not here", fix=f"there are {known}")
        return Dataset(view.narrowed(*names))

    def by_id(self, image_id: str) -> Sample:
        """Read the sample of an image; KeyError if there is none."""
        number = self._number_by_id[image_id]
        if number == _SEVERAL:
            what = f"several samples have the id {image_id!r}"
            raise UsageError(what, path=self._view.folder.name)
        position = int(np.searchsorted(self._view.numbers, number))
        if position == len(self) or self._view.numbers[position] != number:  # in another bucket
            raise KeyError(image_id)
        return self[position]

    def column(self, name: str) -> list[Any]:
        """Read a field of every record, in file order; None where it is missing.

        The first time, all JSON members are read.
        """
        return self._read_columns([name])[name].to_list()

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = True,
        small_buckets: SmallBuckets = "drop",
        tokens: Tokens = None,
        repeats: Repeats | None = None,
    ) -> Batches:
        """Make shuffled batches, each of one bucket, with stacked arrays; see ``Batches``."""
        view, shares = self._view, None
        if repeats is not None:
            shares = factors(repeats, len(self), self._read_columns)
            view = View(view.folder, view.catalog, view.numbers[shares > 0], view.fields)
        settings = BatchSettings(
            batch_size=integer("batch_size", batch_size, least=1),
            seed=integer("seed", seed),
            world_size=integer("world_size", world_size),
            drop_last=drop_last,
            small_buckets=small_buckets,
            samples=view.catalog.digest(self._view.numbers),
            repeats=None if shares is None else xxh3_64_hexdigest(shares.tobytes()),
        )
        epoch, rank = integer("epoch", epoch), integer("rank", rank)
        used = None if shares is None else shares[shares > 0]
        return Batches(Epochs(view, settings, rank, tokens, used), epoch)

    def _read_columns(self, names: list[str]) -> dict[str, RecordColumn]:
        if new := [name for name in names if name not in self._columns]:
            self._columns |= read_columns(self._view, new)
        return {name: self._columns[name] for name in names}

    @cached_property
    def _number_by_id(self) -> dict[str, int]:
        view = self._view
        ids = read_ids(view.folder, view.catalog)
        if ids is None:  # no index, so every sample is read
            if JSON_SUFFIX not in view.catalog.members:
                raise UsageError("samples have no JSON member with an id", path=view.folder.name)
            everything = View(view.folder, view.catalog, fields=(JSON_SUFFIX,))
            ids = [_id_of(sample) for sample in everything.in_order(_GROUP)]
        numbers: dict[str, int] = {}
        for number, image_id in enumerate(ids):
            numbers[image_id] = _SEVERAL if image_id in numbers else number
        return numbers


def _id_of(sample: Sample) -> str:
    image_id = sample[JSON_SUFFIX].get("image_id")
    if not isinstance(image_id, str):
        raise UsageError(f"{sample['__key__']}.{JSON_SUFFIX} has no image_id")
    return image_id
