"""Batches of one bucket: shuffled, stacked, the same on every machine, and resumable.

All ranks plan the same epoch: the samples of each bucket are shuffled and cut into batches, then
the batches of all buckets are shuffled and dealt to the ranks in turn. So a rank needs only its
number, and a place in an epoch is one number too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shardwright.errors import UsageError
from shardwright.progress import quantity
from shardwright.recipes import JSON_SUFFIX
from shardwright.shards.reader.catalog import Numbers
from shardwright.shards.reader.repeats import Factors, Shares, draw_shares
from shardwright.shards.reader.stacking import Columns, Stack, Stacking, Tokens, stacked
from shardwright.shards.reader.view import View
from shardwright.validate import integer, require_known

if TYPE_CHECKING:
    from shardwright.shards.reader.torch import TorchBatches

Batch = dict[str, Any]
State = dict[str, Any]
SmallBuckets = Literal["drop", "keep", "refuse"]


@dataclass(frozen=True)
class BatchSettings:
    """The settings that decide the batches of every epoch; a state is valid only with the same."""

    batch_size: int
    seed: int
    world_size: int
    drop_last: bool
    small_buckets: SmallBuckets
    samples: str  # a digest of the dataset
    repeats: str | None = None  # a digest of its numbers

    def to_dict(self) -> dict[str, Any]:
        """Give them for a state, which has no ``repeats`` where there are none."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Batches:
    """The batches of one epoch for one rank; iterating twice gives the same batches twice.

    A batch is a dict: every array stacked under its suffix, ``json`` (a list of dicts),
    ``image_id``, ``caption`` and ``__key__`` (lists), ``bucket``, and ``__state__``. Without
    ``repeats`` a sample appears at most once per epoch. Ranks get different batches and the same
    number of them.

    Trimmed text is padded with zeros to the longest of its batch, or to ``tokens``: one length, or
    a length by suffix. Its mask is as long, with ones for the rows of a caption. Arrays with a free
    axis and pictures are lists.

    ``drop_last`` leaves out samples that do not fill a batch, other ones in every epoch. Without
    it some batches are short, and at most ``world_size - 1`` samples are left out. A bucket with
    fewer samples than a batch would never be used, so ``small_buckets`` decides: ``"drop"`` it
    with a warning, ``"keep"`` it as one short batch, or ``"refuse"``.

    ``repeats`` says how often a sample comes in an epoch: a number by value, by column of the
    records (``{"style": {"drawing": 3, "photo": 0.5}}``, where other values count 1 and columns
    multiply), or a number for each sample of the dataset. 0 leaves it out. 2.5 is twice, and a
    third time in every second epoch: in any k epochs in a row it comes k * 2.5 times, rounded down
    or up, before ``drop_last``. Which epochs these are follows from the seed, so it is the same on
    every rank. Copies of a sample are spread over the epoch; only where its bucket has few batches
    may two be in one. Epochs may differ in length by a few batches: ask for ``len`` in each.

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

    def __init__(
        self,
        view: View,
        settings: BatchSettings,
        rank: int,
        tokens: Tokens = None,
        repeats: Factors | None = None,
    ) -> None:
        _require_sense(settings, rank)
        self._view = view
        self._settings = settings
        self._rank = rank
        self._planned: tuple[int, list[Numbers]] | None = None  # an epoch and its batches
        buckets = view.catalog.by_bucket(view.numbers)
        self._stacking = Stacking(view, tokens)
        for bucket, numbers in buckets.items():
            self._stacking.require_stackable(bucket, view.sizes(numbers))
        self._shares: dict[str, Shares] = {}
        if repeats is not None:
            places = {name: np.searchsorted(view.numbers, found) for name, found in buckets.items()}
            split = {name: repeats[place] for name, place in places.items()}
            self._shares = draw_shares(split, settings.seed)
        self._buckets = _settle_small(buckets, settings, self._shares)

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
        return {"epoch": epoch, "batch": position, **self._settings.to_dict()}

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
            what = f"this state belongs to other batches: {', '.join(differing)}"
            raise UsageError(what, fix="use the same shards and settings, or start without it")
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
            batch, arrays = gather(self._view, numbers, self._stacking)
            yield after, batch | stack(arrays) | {"__state__": self.state(epoch, after)}

    def _plan(self, epoch: int) -> list[Numbers]:
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, plan(self._buckets, self._settings, epoch, self._shares)
        return self._planned[1]


def plan(
    buckets: Mapping[str, Numbers],
    settings: BatchSettings,
    epoch: int,
    shares: Mapping[str, Shares],
) -> list[Numbers]:
    """Plan the batches of an epoch for all ranks, the same number for each.

    A bucket without shares comes once.
    """
    draw = np.random.PCG64(np.random.SeedSequence((settings.seed, epoch)))
    size = settings.batch_size
    batches: list[Numbers] = []
    for name, numbers in buckets.items():
        if name in shares:
            shuffled = numbers[shares[name].shuffled(draw, epoch)]
        else:
            shuffled = numbers[_shuffle(draw, len(numbers))]
        if settings.drop_last and (len(shuffled) > size or settings.small_buckets != "keep"):
            shuffled = shuffled[: len(shuffled) - len(shuffled) % size]
        batches += [shuffled[at : at + size] for at in range(0, len(shuffled), size)]
    batches = [batches[at] for at in _shuffle(draw, len(batches))]
    if not settings.drop_last:
        _split_until_even(batches, settings.world_size)
    return batches[: len(batches) - len(batches) % settings.world_size]


def gather(view: View, numbers: Numbers, stacking: Stacking) -> tuple[Batch, Columns]:
    """Read samples of one bucket; their arrays map the shards."""
    samples = list(view.samples(numbers.tolist()))
    arrays = stacking.columns(samples)
    batch: Batch = {"bucket": view.catalog.shard_of(int(numbers[0])).bucket}
    batch |= {name: [s[name] for s in samples] for name in samples[0] if name not in arrays}
    if JSON_SUFFIX in batch:
        for name in ("image_id", "caption"):
            batch[name] = [fields.get(name) for fields in batch[JSON_SUFFIX]]
    return batch, arrays


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


def _settle_small(
    buckets: dict[str, Numbers], settings: BatchSettings, shares: Mapping[str, Shares]
) -> dict[str, Numbers]:
    """Drop or refuse buckets that do not fill one batch, as the caller chose."""
    once: dict[str, float] = {name: len(numbers) for name, numbers in buckets.items()}
    sizes = once | {name: share.mean for name, share in shares.items()}
    small = {name: size for name, size in sizes.items() if size < settings.batch_size}
    if not small or settings.small_buckets == "keep":
        return buckets
    counts = ", ".join(f"{count:g} in {name}" for name, count in small.items())
    what = f"buckets with fewer samples than batch_size {settings.batch_size}: {counts}"
    if settings.small_buckets == "refuse":
        raise UsageError(what)
    if not settings.drop_last:
        return buckets
    what = f"never used: {what}; small_buckets='keep' makes short batches of them"
    warnings.warn(what, stacklevel=4)  # points at the caller of batches
    return {name: numbers for name, numbers in buckets.items() if name not in small}


def _require_sense(settings: BatchSettings, rank: int) -> None:
    if not 0 <= rank < settings.world_size:
        what = f"rank {rank} of world_size {settings.world_size}"
        raise UsageError(what, fix="ranks count from 0")
    require_known("small_buckets", settings.small_buckets, ("drop", "keep", "refuse"))
