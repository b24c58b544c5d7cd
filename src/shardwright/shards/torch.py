"""Batches for torch: a thin ``IterableDataset``. The one module that needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from shardwright.schema import Shape
from shardwright.shards.batches import Batch, Batches, State


class TorchBatches(IterableDataset[Batch]):
    """The batches with tensors for arrays; give it to a ``DataLoader`` with ``batch_size=None``.

    With several workers every batch comes once, and in the same order as without. The workers read
    ahead of the training loop, so only a batch itself knows where the loop is: to resume after a
    batch, keep its ``__state__`` and give it to ``load_state_dict`` before iterating again.
    ``state_dict`` says how far this very process has read, which is what torchdata's
    ``StatefulDataLoader`` asks of each worker.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        state = batches.state_dict()
        # Shared, so that workers that persist learn of another epoch.
        self._place = torch.tensor([state["epoch"], state["batch"]]).share_memory_()
        self._own: tuple[int, int] | None = None  # the place of one worker, where it was given one
        self._read: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        epoch, start = self._own or self._place.tolist()
        self._own = None
        allocate = _Allocate(shared=worker is not None)
        self._read = epoch, start
        for after, batch in self._batches.iterate(epoch, start + first, step, allocate):
            # All workers count from the same start, so that each finds its own batches again.
            self._read = epoch, after - first - 1 + step
            yield {name: allocate.tensor(value) for name, value in batch.items()}
            allocate.tensors.clear()

    @property
    def epoch(self) -> int:
        """The epoch that iterating gives."""
        return int(self._place[0])

    def set_epoch(self, epoch: int) -> None:
        """Go on to an epoch; nothing changes if it is the present one."""
        if epoch != self.epoch:
            self._go(epoch, 0)

    def state_dict(self) -> State:
        """Give the place this process has read up to."""
        return self._batches.state(*(self._read or self._place.tolist()))

    def load_state_dict(self, state: State) -> None:
        """Go to the place in an epoch that a state tells."""
        place = self._batches.place(state)
        if get_worker_info() is None:
            self._go(*place)
        else:  # a loader that keeps a state for each of its workers
            self._own = place

    def _go(self, epoch: int, start: int) -> None:
        self._place[0], self._place[1] = epoch, start
        self._read = None


class _Allocate:
    """Allocates tensors and lends them as arrays.

    A worker's tensors live in shared memory, so that the trainer gets them without another copy.
    """

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.tensors: dict[int, torch.Tensor] = {}

    def __call__(self, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        tensor = torch.empty(0 if self.shared else shape, dtype=kind)
        if self.shared:  # as torch's own collate function does
            storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)
            tensor.set_(storage, 0, shape)
        array: NDArray[Any] = tensor.numpy()
        self.tensors[id(array)] = tensor
        return array

    def tensor(self, value: Any) -> Any:  # noqa: ANN401 - whatever a batch holds
        """Give the tensor that was lent as this array; anything else as it is."""
        return self.tensors.get(id(value), value)
