"""How often each sample comes in an epoch: the same on every machine, with nothing to store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import UsageError
from shardwright.progress import quantity
from shardwright.shards.reader.catalog import Numbers
from shardwright.shards.reader.records import RecordColumn
from shardwright.validate import require_mapping

# A number for each value of a column, or for each sample.
Repeats = Mapping[str, Mapping[Any, float]] | Sequence[float] | NDArray[Any]
Factors = NDArray[np.float64]  # by sample

_MOST = 1_000_000
_LISTED = 20  # values of a column, in an error
_LARGEST = np.uint64(2**64 - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # its multiples, modulo 2**64, lie evenly


def factors(
    repeats: Repeats, samples: int, read: Callable[[list[str]], Mapping[str, RecordColumn]]
) -> Factors:
    """Give the number of each sample; ``read`` gives columns of the records."""
    if not isinstance(repeats, Mapping):
        found = _checked("repeats", repeats)
        if len(found) != samples:
            counts = f"{quantity(len(found), 'numbers')}, but there are {samples:,} samples"
            raise UsageError(f"repeats has {counts}", fix="give one for each, in file order")
    else:
        for name, given in repeats.items():
            require_mapping(f"repeats of {name}", given, "values to numbers")
            _checked(f"repeats of {name}", list(given.values()), list(given))
        found = np.ones(samples)
        for name, column in read(list(repeats)).items():
            found *= _by_value(name, column, repeats[name])[column.codes]
        _checked("repeats", found)
    if not found.any():
        raise UsageError("repeats leaves out every sample", fix="give some of them more than 0")
    return found


def _by_value(name: str, column: RecordColumn, given: Mapping[Any, float]) -> Factors:
    """Give the number of each value of a column."""
    found = np.ones(len(column.values))
    for value, number in given.items():
        code = column.code(value)
        if code is None:
            known = [repr(each) for each in column.values[:_LISTED]]
            more = len(column.values) - len(known)
            known += [f"{more:,} more"] if more else []
            fix = f"there are {', '.join(known)}"
            raise UsageError(f"repeats of {name}: no sample has {value!r}", fix=fix)
        found[code] = number
    return found


def _checked(name: str, given: Any, values: Sequence[Any] = ()) -> Factors:  # noqa: ANN401 - a caller's
    """Give numbers as an array; raise if one is wrong, and name its value or its sample."""
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "biuf"):
        raise UsageError(f"{name}: not numbers", fix="give a number for each value or each sample")
    right = (found >= 0) & (found <= _MOST)  # not true of NaN
    if not right.all():
        at = int(np.argmin(right))
        where = repr(values[at]) if values else f"sample {at}"
        fix = f"give a number from 0 to {_MOST:,}"
        raise UsageError(f"{name}, {where}: {found[at]:g}", fix=fix)
    return found.astype(np.float64)


class Shares:
    """How often each sample of one bucket comes in each epoch.

    The fraction of a number adds up from epoch to epoch, and the sample comes once more whenever
    the sum passes an integer. So in any k epochs in a row a sample with the number r comes k * r
    times, rounded down or up. The sums of equal numbers begin evenly spread, in an order drawn from
    the seed, so that epochs are about equally long.
    """

    def __init__(self, repeats: Factors, draw: np.random.PCG64) -> None:
        self.mean = round(float(repeats.sum()), 6)  # samples in an epoch; 160 times 0.1 are 16
        fraction, whole = np.modf(repeats)
        self._whole = whole.astype(np.int64)
        # In units of 2**-64: integers that overflow just where a sum passes an integer.
        self._fraction = (fraction * 2.0**64).astype(np.uint64)
        order = np.lexsort((draw.random_raw(len(repeats)), repeats))
        even = np.arange(len(repeats), dtype=np.uint64) * _GOLDEN
        self._begin = np.empty_like(even)
        self._begin[order] = even + draw.random_raw(1)

    def times(self, epoch: int) -> Numbers:
        """Say how often each sample comes in an epoch."""
        before = self._begin + self._fraction * np.uint64(epoch % 2**64)
        overflows: NDArray[np.bool_] = before + self._fraction < before
        return self._whole + overflows

    def shuffled(self, draw: np.random.PCG64, epoch: int) -> Numbers:
        """Shuffle the samples of an epoch by position, the copies of each at equal distances."""
        times = self.times(epoch)
        first, count = np.cumsum(times) - times, times.astype(np.uint64).repeat(times)
        copy = (np.arange(len(count)) - first.repeat(times)).astype(np.uint64)
        keys = draw.random_raw(len(times)).repeat(times) // count + copy * (_LARGEST // count)
        return np.arange(len(times)).repeat(times)[np.argsort(keys, kind="stable")]


def draw_shares(buckets: Mapping[str, Factors], seed: int) -> dict[str, Shares]:
    """Draw the shares of each bucket from the seed."""
    # With a spawn key, because a seed alone gives the same numbers as this seed with epoch 0.
    draw = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,)))
    return {name: Shares(repeats, draw) for name, repeats in buckets.items()}
