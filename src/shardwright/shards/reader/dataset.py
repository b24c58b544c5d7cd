"""Reading shards back: a dataset that maps the files and decodes only what is asked for."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from shardwright.errors import DamageError, UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.progress import quantity
from shardwright.recipe import JSON_SUFFIX, LONGEST_NAME
from shardwright.shards.format import decode
from shardwright.shards.format.decode import BadMemberError
from shardwright.shards.format.tar import BLOCK
from shardwright.shards.reader.batches import Batches, BatchSettings, SmallBuckets
from shardwright.shards.reader.catalog import Catalog, Numbers, mark, open_catalog, read_ids
from shardwright.shards.reader.folder import Folder, LocalFolder, Piece, Shard
from shardwright.validate import whole

Sample = dict[str, Any]

_GROUP = 16  # samples read at a time when all are read in order
_AHEAD = 2  # groups or batches that are on their way while one is used
_SEVERAL = -1  # the number for an id of more than one sample
_CURE = "copy the shard here again, or pack again"


class Found(NamedTuple):
    """The members of one sample, each from its tar header on."""

    shard: Shard
    key: str
    members: list[memoryview]


def open_shards(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Open a shard folder, or with the ``remote`` extra the URL of one."""
    if "://" in os.fspath(path):
        from shardwright.shards.reader.remote import (
            RemoteFolder,  # here, because fsspec is an extra
        )

        folder: Folder = RemoteFolder(os.fspath(path), storage_options or {})
    else:
        if Path(path).is_file():
            raise UsageError(f"{path}: is a file; give the folder that holds the shards")
        folder = LocalFolder(Path(path))
    return Dataset(folder, open_catalog(folder))


class Dataset:
    """The samples of a shard folder, in file order; ``bucket`` and ``fields`` give views of it.

    ``dataset[i]`` is a dict: ``json`` (a dict), every array under its suffix (``vae.npy`` and so
    on) and ``__key__``. Arrays map the shard: nothing is copied, and nobody can write to them. A
    dataset can be pickled and forked; every process maps the shards for itself.

    Every sample that is read is the one the index names. A local shard that is replaced or written
    to while the dataset is in use is an error at the next read of it; at a URL only if it no longer
    has this sample at this place. Shards must not be cut short in place while arrays map them: to
    touch such an array ends the process, as with any mapped file.
    """

    def __init__(
        self,
        folder: Folder,
        catalog: Catalog,
        numbers: Numbers | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self._numbers = np.arange(len(catalog.places)) if numbers is None else numbers
        self._fields = fields or catalog.members
        self._columns = [catalog.members.index(field) for field in self._fields]
        self._suffixes = [f".{field}".encode() for field in self._fields]

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        samples, names = quantity(len(self), "samples"), ", ".join(self._fields)
        return f"<shardwright dataset {self._folder.name}: {samples} of {names}>"

    def __getitem__(self, position: int) -> Sample:
        try:
            number = self._numbers[operator.index(position)]
        except IndexError:
            raise IndexError(f"sample {position} of {len(self)}") from None
        return next(self._samples([int(number)]))

    def __iter__(self) -> Iterator[Sample]:
        starts = range(0, len(self), _GROUP)
        for group in self.ahead(self._numbers[start : start + _GROUP] for start in starts):
            yield from self._samples(group.tolist())

    @property
    def buckets(self) -> dict[str, int]:
        """Count the samples of each bucket."""
        return {bucket: len(numbers) for bucket, numbers in self.by_bucket().items()}

    def bucket(self, name: str) -> Dataset:
        """View one bucket."""
        found = self.by_bucket().get(name)
        if found is None:
            raise UsageError(f"bucket {name}: not here; there are {', '.join(self.by_bucket())}")
        return Dataset(self._folder, self._catalog, found, self._fields)

    def fields(self, *names: str) -> Dataset:
        """View some members of every sample, so that the others are never read."""
        if not names:
            raise UsageError(f"fields: name at least one of {', '.join(self._fields)}")
        for name in names:
            if name not in self._fields:
                raise UsageError(f"field {name}: not here; there are {', '.join(self._fields)}")
        return Dataset(self._folder, self._catalog, self._numbers, names)

    def by_id(self, image_id: str) -> Sample:
        """Give the sample of an image; KeyError if there is none."""
        number = self._number_by_id[image_id]
        if number == _SEVERAL:
            raise UsageError(f"{self._folder.name}: several samples have the id {image_id!r}")
        position = int(np.searchsorted(self._numbers, number))
        if position == len(self) or self._numbers[position] != number:  # in another bucket
            raise KeyError(image_id)
        return self[position]

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
    ) -> Batches:
        """Give shuffled batches, each of one bucket, its arrays stacked; see ``Batches``."""
        settings = BatchSettings(
            batch_size=whole("batch_size", batch_size),
            seed=whole("seed", seed),
            world_size=whole("world_size", world_size),
            drop_last=drop_last,
            small_buckets=small_buckets,
            samples=self.digest(),
        )
        return Batches(self, settings, whole("epoch", epoch), whole("rank", rank))

    # The rest is what batches are made with.

    @property
    def location(self) -> str:
        """Say where the shards are."""
        return self._folder.name

    @property
    def field_names(self) -> tuple[str, ...]:
        """Name the members that are read."""
        return self._fields

    def by_bucket(self) -> dict[str, Numbers]:
        """Give the numbers of the samples of each bucket that has any."""
        return self._catalog.by_bucket(self._numbers)

    def sizes(self, numbers: Numbers) -> dict[str, Numbers]:
        """Give the sizes of some samples' arrays, by field."""
        return {
            field: self._catalog.places[numbers, column, 1]
            for field, column in zip(self._fields, self._columns, strict=True)
            if field.endswith(".npy")
        }

    def digest(self) -> str:
        """Sum up which samples these are, in which order."""
        hasher = xxhash.xxh3_64(self._catalog.digest().encode())
        hasher.update(self._numbers.tobytes())
        return hasher.hexdigest()

    def ahead(self, groups: Iterable[Numbers]) -> Iterator[Numbers]:
        """Pass groups of samples on, and have the disk read each a little before it is used."""
        waiting: deque[Numbers] = deque()
        for group in groups:
            self._folder.will_need(self._pieces(group.tolist()))
            waiting.append(group)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def read(self, numbers: Sequence[int]) -> Iterator[Found]:
        """Find the members of some samples, and make sure that they are the right ones."""
        pieces = self._pieces(numbers)
        views = self._folder.views(pieces)
        width = len(self._fields)
        known = self._catalog
        for start, number in zip(range(0, len(views), width), numbers, strict=True):
            found = views[start : start + width]
            shard = pieces[start].shard
            if known.keys is not None:  # the headers themselves were scanned
                yield Found(shard, known.keys[number], found)
                continue
            names = [bytes(view[:LONGEST_NAME]).rstrip(b"\0").lower() for view in found]
            key = bytes(found[0][: len(names[0]) - len(self._suffixes[0])])
            alike = [key.lower() + suffix for suffix in self._suffixes]
            if names != alike or mark(key) != known.marks.item(number):
                raise DamageError(
                    f"{self._folder.name}/{shard.path}: does not hold at byte "
                    f"{pieces[start].offset} what its index says, so it is damaged or of another "
                    f"packing; copy the shards and their {STATE_FOLDER} here again together, or "
                    "pack again with --overwrite (shardwright verify finds all such shards)"
                )
            yield Found(shard, key.decode(errors="backslashreplace"), found)

    def damaged(self, found: Found, field: str, what: object) -> DamageError:
        """Name a member that cannot be read."""
        return DamageError(
            f"{self._folder.name}/{found.shard.path}: {found.key}.{field} is damaged ({what}); "
            + _CURE
        )

    def _pieces(self, numbers: Sequence[int]) -> list[Piece]:
        catalog = self._catalog
        places = catalog.places[numbers][:, self._columns].tolist()
        return [
            Piece(shard, offset - BLOCK, size + BLOCK)
            for shard, sample in zip(map(catalog.shard_of, numbers), places, strict=True)
            for offset, size in sample
        ]

    def _samples(self, numbers: Sequence[int]) -> Iterator[Sample]:
        for found in self.read(numbers):
            sample: Sample = {"__key__": found.key}
            for field, view in zip(self._fields, found.members, strict=True):
                try:
                    sample[field] = decode.value(view, field)
                except BadMemberError as error:
                    raise self.damaged(found, field, error) from None
            yield sample

    @cached_property
    def _number_by_id(self) -> dict[str, int]:
        ids = read_ids(self._folder, self._catalog)
        if ids is None:  # no index: the samples themselves must be asked
            if JSON_SUFFIX not in self._catalog.members:
                raise UsageError(f"{self._folder.name}: its samples have no JSON to tell their id")
            everything = Dataset(self._folder, self._catalog, fields=(JSON_SUFFIX,))
            ids = [_id_of(sample) for sample in everything]
        numbers: dict[str, int] = {}
        for number, image_id in enumerate(ids):
            numbers[image_id] = _SEVERAL if image_id in numbers else number
        return numbers


def _id_of(sample: Sample) -> str:
    image_id = sample[JSON_SUFFIX].get("image_id")
    if not isinstance(image_id, str):
        raise UsageError(f"{sample['__key__']}.{JSON_SUFFIX}: names no image_id to find it by")
    return image_id
