"""Batches of one bucket: shuffled, stacked, the same on every machine, and resumable.

The order of an epoch is decided at once and alike for all ranks: the samples of each bucket are
shuffled and cut into batches, then the batches of all buckets are shuffled and dealt to the ranks
in turn. So a rank needs to know only its number, and a place in an epoch is one number too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import UsageError
from shardwright.recipe import JSON_SUFFIX
from shardwright.shards.format import decode
from shardwright.shards.reader.catalog import Numbers
from shardwright.shards.reader.view import Sample, View
from shardwright.store.commands import quoted
from shardwright.validate import whole

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
    """What decides the batches of every epoch, and so what a state belongs to."""

    batch_size: int
    seed: int
    world_size: int
    drop_last: bool
    small_buckets: SmallBuckets
    samples: str  # a digest of the dataset


class Batches:
    """The batches of one epoch for one rank; iterating twice gives the same batches twice.

    A batch is a dict: every array stacked under its suffix, ``json`` (a list of dicts),
    ``image_id``, ``caption`` and ``__key__`` (lists), ``bucket``, and ``__state__``. Every sample
    comes at most once an epoch; all ranks get different samples, and equally many batches.

    ``drop_last`` leaves out what does not fill a batch: other samples in every epoch, since each
    has its own order. Without it some batches are short, and nothing is left out but, where even
    single samples cannot be dealt out evenly, less than one for each rank. A bucket with
    fewer samples than a batch would be left out for ever, so ``small_buckets`` asks what to do:
    ``"drop"`` it all the same and warn, ``"keep"`` it as one short batch, or ``"refuse"``.

    To resume after a batch, give its ``__state__`` (or what ``state_dict()`` said then) to
    ``load_state_dict``; iterating then begins with the next batch. ``set_epoch`` goes on to another
    epoch, from its first batch.
    """

    def __init__(self, epochs: Epochs, epoch: int) -> None:
        self.epoch = epoch
        self._epochs = epochs
        self._start = 0  # where iterating begins
        self._position = 0  # where the latest iteration is
        epochs.require_some(epoch)

    def __len__(self) -> int:
        return self._epochs.count(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        for position, batch in self._epochs.iterate(self.epoch, self._start):
            self._position = position
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Go on to an epoch; nothing changes if it is the present one."""
        epoch = whole("epoch", epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._position = 0

    def state_dict(self) -> State:
        """Give the place in the epoch, as a small dict that JSON can hold."""
        return self._epochs.state(self.epoch, self._position)

    def load_state_dict(self, state: State) -> None:
        """Go to the place in an epoch that a state tells."""
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
        return self.__dict__ | {"_planned": None}  # sooner made again than sent

    def count(self, epoch: int) -> int:
        """Count the batches of an epoch."""
        return len(self._plan(epoch)) // self._settings.world_size

    def require_some(self, epoch: int) -> None:
        """Raise if there is no batch at all."""
        if not self.count(epoch):
            other = "drop_last=False" if self._buckets else "small_buckets='keep'"
            raise UsageError(
                f"{self._view.folder.name}: has not even one batch of {self._settings.batch_size} "
                f"for each of {self._settings.world_size} ranks; take smaller batches, or {other}"
            )

    def state(self, epoch: int, position: int) -> State:
        """Describe a place so that ``place`` finds it again."""
        return {"epoch": epoch, "batch": position, **asdict(self._settings)}

    def place(self, state: State, workers: int = 0) -> tuple[int, int]:
        """Give the epoch and the batch of a state, if it is a state of batches like these.

        Each of several workers reads every so many batches, and ends beyond the last one.
        """
        differing = [
            f"{name} was {state.get(name)} and is {value}"
            for name, value in asdict(self._settings).items()
            if state.get(name) != value
        ]
        if differing:
            raise UsageError(f"this state is of other batches: {'; '.join(differing)}")
        epoch, batch = whole("epoch", state.get("epoch")), whole("batch", state.get("batch"))
        if batch > self.count(epoch) + workers:
            count = self.count(epoch)
            raise UsageError(f"this state is after batch {batch}, and an epoch has {count}")
        return epoch, batch

    def iterate(
        self, epoch: int, start: int, step: int = 1, stack: Stack = stacked
    ) -> Iterator[tuple[int, Batch]]:
        """Read batches of an epoch, all or every second and so on; give the place after each."""
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
    """Decide the batches of an epoch for all ranks, equally many for each."""
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
    """Read samples of one bucket; their arrays still map the shards, and can be stacked."""
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
            raise UsageError(
                f"{sample['__key__']}.{field} is {array.dtype} {array.shape}, and "
                f"{samples[0]['__key__']}.{field} of the same bucket {first.dtype} {first.shape}; "
                f"{_one_shape(view, field)}"
            )


def _one_shape(view: View, field: str) -> str:
    """Say how to make what does not stack stack."""
    what = "a batch needs one shape a bucket"
    component = view.catalog.arrays.get(field)
    if component is None or not component.follows_picture:
        return what
    return (
        f"{what}: with the flags of your store, run shardwright derive --fit bucket --recompute "
        f"{component.name}, then shardwright pack --overwrite --output-dir "
        f"{quoted(view.folder.name)}"
    )


def _shuffle(draw: np.random.PCG64, count: int) -> Numbers:
    # By sort key, because NumPy guarantees these raw numbers for ever, and not its own shuffle.
    return np.argsort(draw.random_raw(count), kind="stable")


def _split_until_even(batches: list[Numbers], world_size: int) -> None:
    """Halve the largest batches until the ranks can have equally many without losing a sample."""
    while len(batches) % world_size:
        largest = max(range(len(batches)), key=lambda at: len(batches[at]))
        half = len(batches[largest]) // 2
        if not half:  # single samples are left, and too few for all ranks
            return
        batches.append(batches[largest][half:])
        batches[largest] = batches[largest][:half]


def _settle_small(buckets: dict[str, Numbers], settings: BatchSettings) -> dict[str, Numbers]:
    """Do with buckets that do not fill one batch as the caller chose, and say so."""
    small = {name: len(n) for name, n in buckets.items() if len(n) < settings.batch_size}
    told = ", ".join(f"{count} in {name}" for name, count in small.items())
    if small and settings.small_buckets == "refuse":
        raise UsageError(
            f"buckets with fewer samples than batch_size {settings.batch_size}: {told}"
        )
    if not small or settings.small_buckets == "keep" or not settings.drop_last:
        return buckets
    warnings.warn(
        f"never used, as their bucket has fewer samples than batch_size {settings.batch_size}: "
        f"{told}; small_buckets='keep' makes short batches of them",
        stacklevel=4,  # whoever called batches
    )
    return {name: numbers for name, numbers in buckets.items() if name not in small}


def _require_stackable(view: View, buckets: dict[str, Numbers]) -> None:
    """Raise now, and not in the middle of an epoch, if arrays of a bucket differ in size."""
    for bucket, numbers in buckets.items():
        for field, sizes in view.sizes(numbers).items():
            kinds, counts = np.unique(sizes, return_counts=True)
            if len(kinds) > 1:
                odd = len(sizes) - counts.max()
                raise UsageError(
                    f"bucket {bucket}: {odd:,} of its {len(sizes):,} {field} differ in size from "
                    f"the others; {_one_shape(view, field)}"
                )


def _require_sense(settings: BatchSettings, rank: int) -> None:
    if settings.batch_size < 1:
        raise UsageError(f"batch_size is {settings.batch_size}; give 1 or more")
    if not 0 <= rank < settings.world_size:
        raise UsageError(f"rank {rank} of world_size {settings.world_size}: ranks count from 0")
    if settings.small_buckets not in ("drop", "keep", "refuse"):
        raise UsageError(f"small_buckets is {settings.small_buckets!r}; say drop, keep or refuse")
