"""Batches for torch: a thin ``IterableDataset``. The one module that needs torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardwright.errors import StorageError
from shardwright.shards.reader.batches import Batch, Epochs, State
from shardwright.shards.reader.stacking import Column, Columns
from shardwright.validate import integer

_ALIGNED = 64


class TorchBatches(IterableDataset[Batch]):
    """The batches with tensors for arrays; pass it to a ``DataLoader`` with ``batch_size=None``.

    With several workers every batch comes once, in the same order as without; its tensors share
    one piece of memory, which is freed with the last of them. Workers read ahead of the training
    loop, so only a batch knows where the loop is: to resume after a batch, keep its ``__state__``
    and pass it to ``load_state_dict`` before iterating again. ``state_dict`` says how far this
    process has read, as torchdata's ``StatefulDataLoader`` asks each worker.
    """

    def __init__(self, epochs: Epochs, epoch: int, start: int) -> None:
        self._epochs = epochs
        # Shared, so that persistent workers see another epoch.
        self._place = torch.tensor([epoch, start]).share_memory_()
        self._own: tuple[int, int] | None = None  # the place of one worker, if it has its own
        self._read: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self._epochs.count(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        epoch, start = self._own or self._place.tolist()
        self._own = None
        # Without memfd_create torch itself copies the batches of a worker into shared memory.
        stack = _shared if worker and hasattr(os, "memfd_create") else _tensors
        self._read = epoch, start
        for after, batch in self._epochs.iterate(epoch, start + first, step, stack):
            # All workers count from the same start, so each finds its own batches again.
            self._read = epoch, after - first - 1 + step
            yield batch

    @property
    def epoch(self) -> int:
        """The epoch that iterating gives."""
        return int(self._place[0])

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; nothing changes if it is the current one."""
        epoch = integer("epoch", epoch)
        if epoch != self.epoch:
            self._go(epoch, 0)

    def state_dict(self) -> State:
        """Give the place up to which this process has read."""
        return self._epochs.state(*(self._read or self._place.tolist()))

    def load_state_dict(self, state: State) -> None:
        """Continue at the place of a state."""
        worker = get_worker_info()
        if worker is None:
            self._go(*self._epochs.place(state))
        else:  # a loader that keeps a state for each of its workers
            self._own = self._epochs.place(state, worker.num_workers)

    def _go(self, epoch: int, start: int) -> None:
        self._place[0], self._place[1] = epoch, start
        self._read = None


def _tensors(columns: Columns) -> dict[str, Any]:
    return {field: _tensor(column) for field, column in columns.items()}


def _tensor(column: Column) -> torch.Tensor | list[torch.Tensor]:
    found, kind = column.merged(), _kind(column)
    if isinstance(found, list):
        return [torch.from_numpy(array).view(kind) for array in found]
    return torch.from_numpy(found).view(kind)


def _kind(column: Column) -> torch.dtype:
    if column.is_bfloat16:
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, column.arrays[0].dtype)).dtype


def _shared(columns: Columns) -> dict[str, Any]:
    """Put all fields in one piece of shared memory, which the trainer maps without a copy.

    It is written as a file, because filling fresh memory page by page takes twice as long, and not
    in /dev/shm, which is small in many containers. One piece needs one file descriptor. What pads
    an array is never written: a hole in a file reads as zeros.
    """
    if not columns:
        return {}
    fd = os.memfd_create("shardwright")
    try:
        end = 0
        places: dict[str, list[int]] = {}
        for field, column in columns.items():
            starts = places[field] = []
            step = 0 if column.length is None else math.prod(column.shape) * _item(column)
            for array in column.arrays:
                if column.apart or not starts:
                    end = -(-end // _ALIGNED) * _ALIGNED
                starts.append(end)
                if os.pwrite(fd, array.data, end) != array.nbytes:
                    raise StorageError("no memory left to share a batch", fix="use smaller batches")
                end += step or array.nbytes
        os.ftruncate(fd, end)
        storage = torch.UntypedStorage._new_shared_fd_cpu(fd, end)
    finally:
        os.close(fd)
    tensors: dict[str, Any] = {}
    for field, column in columns.items():
        kind, item = _kind(column), _item(column)
        if column.apart:
            tensors[field] = [
                torch.empty(0, dtype=kind).set_(storage, start // item, array.shape)
                for start, array in zip(places[field], column.arrays, strict=True)
            ]
        else:
            shape = (len(column.arrays), *column.shape)
            start = places[field][0]
            tensors[field] = torch.empty(0, dtype=kind).set_(storage, start // item, shape)
    return tensors


def _item(column: Column) -> int:
    return column.arrays[0].itemsize
