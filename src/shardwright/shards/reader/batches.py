"""Batches of one bucket: shuffled, stacked, the same on every machine, and resumable.

All ranks plan the same epoch: the samples of each bucket are shuffled and cut into batches, then
the batches of all buckets are shuffled and dealt to the ranks in turn. So a rank needs only its
number, and a place in an epoch is one number too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import UsageError
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX
from shardwright.shards.format import decode
from shardwright.shards.reader.catalog import Numbers
from shardwright.shards.reader.view import Sample, View
from shardwright.store.commands import quoted
from shardwright.validate import integer

if TYPE_CHECKING:
    from shardwright.shards.reader.torch import TorchBatches

Batch = dict[str, Any]
State = dict[str, Any]
Arrays = dict[str, list[NDArray[Any]]]  # of one batch, by field
Stack = Callable[[Arrays], dict[str, Any]]
SmallBuckets = Literal["drop", "keep", "refuse"]


def stacked(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Stack each field: one allocation, and one copy of each sample."""
    return {field: np.stack(found, dtype=found[0].dtype) for field, found in arrays.items()}


@dataclass(frozen=True)
class BatchSettings:
    """The settings that decide the batches of every epoch; a state is valid only with the same."""

    batch_size: int
    seed: int
    world_size: int
    drop_last: bool
    small_buckets: SmallBuckets
    samples: str  # a digest of the dataset


class Batches:
    """The batches of one epoch for one rank; iterating twice gives the same batches twice.

    A batch is a dict: every array stacked under its suffix, ``json`` (a list of dicts),
    ``image_id``, ``caption`` and ``__key__`` (lists), ``bucket``, and ``__state__``. A sample
    appears at most once per epoch. Ranks get different samples and the same number of batches.

    ``drop_last`` leaves out samples that do not fill a batch, other ones in every epoch. Without
    it some batches are short, and at most ``world_size - 1`` samples are left out. A bucket with
    fewer samples than a batch would never be used, so ``small_buckets`` decides: ``"drop"`` it
    with a warning, ``"keep"`` it as one short batch, or ``"refuse"``.

    To resume after a batch, pass its ``__state__`` (or ``state_dict()`` at that time) to
    ``load_state_dict``; iterating starts with the next batch. ``set_epoch`` starts another epoch.
    """

    def __init__(self, epochs: Epochs, epoch: int) -> None:
        self.epoch = epoch
        self._epochs = epochs
        self._start = 0  # where iterating begins
        self._position = 0  # of the latest iteration
        epochs.require_batches(epoch)

    def __len__(self) -> int:
        return self._epochs.count(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        for position, batch in self._epochs.iterate(self.epoch, self._start):
            self._position = position
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; nothing changes if it is the current one."""
        epoch = integer("epoch", epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._position = 0

    def state_dict(self) -> State:
        """Give the place in the epoch, as a small dict for JSON."""
        return self._epochs.state(self.epoch, self._position)

    def load_state_dict(self, state: State) -> None:
        """Continue at the place of a state."""
        self.epoch, self._start = self._epochs.place(state)
        self._position = self._start

    def torch(self) -> TorchBatches:
        """Give the batches as a torch ``IterableDataset``, for a DataLoader."""
        from shardwright.shards.reader.torch import TorchBatches  # here: torch is an extra

        return TorchBatches(self._epochs, self.epoch, self._position)


class Epochs:
    """The batches of every epoch for one rank."""

    def __init__(self, view: View, settings: BatchSettings, rank: int) -> None:
        _require_sense(settings, rank)
        self._view = view
        self._settings = settings
        self._rank = rank
        self._planned: tuple[int, list[Numbers]] | None = None  # an epoch and its batches
        buckets = view.by_bucket()
        _require_stackable(view, buckets)
        self._buckets = _settle_small(buckets, settings)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planned": None}  # planning is faster than sending

    def count(self, epoch: int) -> int:
        """Count the batches of an epoch."""
        return len(self._plan(epoch)) // self._settings.world_size

    def require_batches(self, epoch: int) -> None:
        """Raise if there is no batch at all."""
        if not self.count(epoch):
            size, ranks = self._settings.batch_size, quantity(self._settings.world_size, "ranks")
            other = "drop_last=False" if self._buckets else "small_buckets='keep'"
            what, fix = f"too few samples for a batch of {size} on {ranks}", "use smaller batches"
            raise UsageError(what, path=self._view.folder.name, fix=f"{fix}, or {other}")

    def state(self, epoch: int, position: int) -> State:
        """Describe a place, for ``place``."""
        return {"epoch": epoch, "batch": position, **asdict(self._settings)}

    def place(self, state: State, workers: int = 0) -> tuple[int, int]:
        """Give the epoch and the batch of a state; raise if it belongs to other batches.

        With several workers, each reads every so many batches and may end beyond the last one.
        """
        differing = [
            f"{name} was {state.get(name)} and is {value}"
            for name, value in asdict(self._settings).items()
            if state.get(name) != value
        ]
        if differing:
            raise UsageError(f"this state belongs to other batches: {', '.join(differing)}")
        epoch, batch = integer("epoch", state.get("epoch")), integer("batch", state.get("batch"))
        if batch > self.count(epoch) + workers:
            count = quantity(self.count(epoch), "batches")
            raise UsageError(f"this state is after batch {batch}, but an epoch has {count}")
        return epoch, batch

    def iterate(
        self, epoch: int, start: int, step: int = 1, stack: Stack = stacked
    ) -> Iterator[tuple[int, Batch]]:
        """Read every ``step``-th batch of an epoch; give the place after it, and the batch."""
        mine = self._plan(epoch)[self._rank :: self._settings.world_size][start::step]
        for count, numbers in enumerate(self._view.ahead(mine)):
            after = start + count * step + 1
            batch, arrays = gather(self._view, numbers)
            yield after, batch | stack(arrays) | {"__state__": self.state(epoch, after)}

    def _plan(self, epoch: int) -> list[Numbers]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, plan(self._buckets, self._settings, epoch)
        return self._planned[1]


def plan(buckets: Mapping[str, Numbers], settings: BatchSettings, epoch: int) -> list[Numbers]:
    """Plan the batches of an epoch for all ranks, the same number for each."""
    draw = np.random.PCG64(np.random.SeedSequence((settings.seed, epoch)))
    size = settings.batch_size
    batches: list[Numbers] = []
    for numbers in buckets.values():
        shuffled = numbers[_shuffle(draw, len(numbers))]
        if settings.drop_last and len(numbers) > size:
            shuffled = shuffled[: len(numbers) - len(numbers) % size]
        batches += [shuffled[at : at + size] for at in range(0, len(shuffled), size)]
    batches = [batches[at] for at in _shuffle(draw, len(batches))]
    if not settings.drop_last:
        _split_until_even(batches, settings.world_size)
    return batches[: len(batches) - len(batches) % settings.world_size]


def gather(view: View, numbers: Numbers) -> tuple[Batch, Arrays]:
    """Read samples of one bucket; their arrays map the shards and have one shape."""
    samples = list(view.samples(numbers.tolist()))
    columns = {field: [sample[field] for sample in samples] for field in samples[0]}
    arrays = {field: columns.pop(field) for field in view.fields if decode.is_array(field)}
    for field in arrays:
        _require_one_shape(view, samples, field)
    batch: Batch = {"bucket": view.catalog.shard_of(int(numbers[0])).bucket, **columns}
    if JSON_SUFFIX in batch:
        for name in ("image_id", "caption"):
            batch[name] = [fields.get(name) for fields in batch[JSON_SUFFIX]]
    return batch, arrays


def _require_one_shape(view: View, samples: list[Sample], field: str) -> None:
    first = samples[0][field]
    for sample in samples:
        array = sample[field]
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            what = (
                f"{sample['__key__']}.{field} is {array.dtype} {array.shape}, but "
                f"{samples[0]['__key__']}.{field} of the same bucket is {first.dtype} {first.shape}"
            )
            raise UsageError(what, fix=_one_shape(view, field))


def _one_shape(view: View, field: str) -> str:
    """Say how to give all arrays of a bucket one shape."""
    what = "a batch needs one shape per bucket"
    component = view.catalog.arrays.get(field)
    if component is None or not component.follows_picture:
        return what
    return (
        f"{what}: with the flags of your store, run shardwright derive --fit bucket --recompute "
        f"{component.name}, then shardwright pack --overwrite --output-dir "
        f"{quoted(view.folder.name)}"
    )


def _shuffle(draw: np.random.PCG64, count: int) -> Numbers:
    # By sort key, because NumPy never changes these raw numbers, but may change its shuffle.
    return np.argsort(draw.random_raw(count), kind="stable")


def _split_until_even(batches: list[Numbers], world_size: int) -> None:
    """Halve the largest batches until every rank gets the same number without losing a sample."""
    while len(batches) % world_size:
        largest = max(range(len(batches)), key=lambda at: len(batches[at]))
        half = len(batches[largest]) // 2
        if not half:  # only single samples are left, too few for all ranks
            return
        batches.append(batches[largest][half:])
        batches[largest] = batches[largest][:half]


def _settle_small(buckets: dict[str, Numbers], settings: BatchSettings) -> dict[str, Numbers]:
    """Drop or refuse buckets that do not fill one batch, as the caller chose."""
    small = {name: len(n) for name, n in buckets.items() if len(n) < settings.batch_size}
    if not small or settings.small_buckets == "keep":
        return buckets
    counts = ", ".join(f"{count} in {name}" for name, count in small.items())
    what = f"buckets with fewer samples than batch_size {settings.batch_size}: {counts}"
    if settings.small_buckets == "refuse":
        raise UsageError(what)
    if not settings.drop_last:
        return buckets
    what = f"never used: {what}; small_buckets='keep' makes short batches of them"
    warnings.warn(what, stacklevel=4)  # points at the caller of batches
    return {name: numbers for name, numbers in buckets.items() if name not in small}


def _require_stackable(view: View, buckets: dict[str, Numbers]) -> None:
    """Raise now, not in the middle of an epoch, if arrays of a bucket differ in size."""
    for bucket, numbers in buckets.items():
        for field, sizes in view.sizes(numbers).items():
            kinds, counts = np.unique(sizes, return_counts=True)
            if len(kinds) > 1:
                odd, total = len(sizes) - counts.max(), len(sizes)
                what = f"bucket {bucket}: {odd:,} of {total:,} {field} differ in size"
                raise UsageError(what, fix=_one_shape(view, field))


def _require_sense(settings: BatchSettings, rank: int) -> None:
    if settings.batch_size < 1:
        raise UsageError(f"batch_size is {settings.batch_size}", fix="give 1 or more")
    if not 0 <= rank < settings.world_size:
        what = f"rank {rank} of world_size {settings.world_size}"
        raise UsageError(what, fix="ranks count from 0")
    if settings.small_buckets not in ("drop", "keep", "refuse"):
        what = f"small_buckets is {settings.small_buckets!r}"
        raise UsageError(what, fix="give drop, keep or refuse")
