"""Faster ways to compute a pass: each is tried once at the start of a run, and the best is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from shardwright.deriving.batches import Batcher
from shardwright.deriving.images import Size
from shardwright.deriving.passes import Array, Pass
from shardwright.encoders.base import EAGER
from shardwright.encoders.packages import first_line
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.recipes import Component

_LEAST_GAIN = 1.05
_TIMES = 3
# How far a way may move the values, by their root mean square: in a deep model, some of the last
# bits of each step.
_ROUNDING = {"float32": 2.0**-17, "tf32": 2.0**-10, "bfloat16": 2.0**-6}


def tune(
    through: Pass,
    batcher: Batcher,
    size: Size,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Use the fastest way to compute a pass, if it gains enough and gives the same values."""
    progress = batcher.progress
    if not through.ways:
        progress.say(f"{through.name}: {EAGER}; nothing here can compile it")
        return
    inputs = batcher.full(through, size)
    try:
        expected, eager = _timed(through, EAGER, inputs, clock)
    except MemoryError:
        if len(inputs[0]) > 1:
            batcher.halve(through, inputs)
            tune(through, batcher, size, clock)
        else:
            progress.warn(f"{through.name}: {EAGER}; no memory to try other ways")
        return
    seconds = {EAGER: eager}
    for way in through.ways:
        try:
            found, took = _timed(through, way, inputs, clock)
        except ShardwrightError:
            raise
        except Exception as error:  # a compiler may raise anything
            progress.warn(f"{through.name}: {way} does not work here ({first_line(error)})")
            continue
        if (apart := _apart(found, expected)) <= _ROUNDING[through.dtype]:
            seconds[way] = took
        else:
            rounding = f"the rounding of {through.dtype}"
            progress.warn(f"{through.name}: {way} moves values by {apart:.1e}, beyond {rounding}")
    best = min(seconds, key=seconds.__getitem__)
    gain = eager / seconds[best]
    if gain < _LEAST_GAIN:
        best, others = EAGER, " and ".join(way for way in seconds if way != EAGER)
        progress.say(f"{through.name}: {EAGER}{f'; {others} gains little' if others else ''}")
    else:
        progress.say(f"{through.name}: {best}, {gain:.2f} times as fast as {EAGER}")
    through.use(best, progress.warn)


def _timed(
    through: Pass, way: str, inputs: tuple[Array, ...], clock: Callable[[], float]
) -> tuple[Mapping[Component, Array], float]:
    """Encode in one way: once to compile, then a few times to take the shortest."""
    with at_once():
        through.use(way)
        found, times = through.encode(*inputs), []
        for _ in range(_TIMES):
            began = clock()
            through.encode(*inputs)
            times.append(clock() - began)
    return found, min(times)


def _apart(found: Mapping[Component, Array], expected: Mapping[Component, Array]) -> float:
    """Give the largest difference of a component, relative to its values."""
    return max(
        float(np.linalg.norm((array - expected[component]).astype(float).ravel()))
        / float(np.linalg.norm(expected[component].astype(float).ravel()) or 1)
        for component, array in found.items()
    )
