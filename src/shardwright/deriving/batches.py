"""Passes, and the batches that they encode in steps that fit into the memory of the device.

A pass is of encoders that share one input and one forward pass of a model; mostly one alone. It has
three steps: ``send`` begins to copy a batch to the device, ``run`` begins to compute, and ``fetch``
waits for the arrays. Of encoders without these steps, ``run`` does everything.

Also faster ways to compute: each is tried once at the start of a run, and the best is used.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.deriving.images import Size
from shardwright.deriving.prepare import Array, Sample, require_mask
from shardwright.deriving.views import View
from shardwright.encoders.base import EAGER, Encoder, PictureWriter
from shardwright.encoders.packages import first_line
from shardwright.engine import DeviceLostError
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import ANY, Component, Shape

BATCH_SIZE = 8  # where memory allows
_PROBE_SIDE = 64
_LEAST_GAIN = 1.05
_TIMES = 3
# How far a way may move the values, by their root mean square: in a deep model, some of the last
# bits of each step.
_ROUNDING = {"float32": 2.0**-17, "tf32": 2.0**-10, "bfloat16": 2.0**-6}


class Pass:
    """Encoders that take their arrays from one forward pass."""

    def __init__(self, encoders: Mapping[Component, Any]) -> None:
        self.encoders = encoders
        self.components = tuple(encoders)
        self._first = self.encoders[self.components[0]]
        self.name = ", ".join(component.name for component in self.components)
        self.source, self.field = self.components[0].source, self.components[0].field
        self.device: str = self._first.device
        # Users' encoders may not have it.
        self.bytes_per_number: int | None = getattr(self._first, "bytes_per_number", None)
        self._in_steps = hasattr(self._first, "send")

    def prepare(self, source: Any) -> Any:  # noqa: ANN401 - a picture or a caption
        """Prepare the input of one sample, for all of them."""
        return self._first.prepare(source)

    @property
    def takes_turns(self) -> bool:
        """Whether its model has to make room for others on the device."""
        return getattr(self._first, "takes_turns", False)

    @property
    def ways(self) -> list[str]:
        """Name the ways to compute that may be faster than eager."""
        return self._first.ways() if hasattr(self._first, "ways") else []

    def use(self, way: str, warn: Callable[[str], None] | None = None) -> None:
        """Compute in one of the ``ways``, or eager; if it fails, warn and go on in eager."""
        if way != self._first.way:
            self._first.use(way)
        self._first.warn = warn

    @property
    def dtype(self) -> str:
        """The precision of a pass that has ``ways``."""
        return str(self._first.dtype)

    def encode(self, *inputs: Array) -> dict[Component, Array]:
        """Encode a batch, and give the arrays of each component."""
        return self.fetch(self.run(self.send(*inputs)), len(inputs[0]))

    def send(self, *inputs: Array) -> Any:  # noqa: ANN401 - only for ``run``
        """Begin to copy a batch to the device."""
        return self._first.send(*inputs) if self._in_steps else inputs

    def run(self, sent: Any) -> Any:  # noqa: ANN401 - only for ``fetch``
        """Begin to compute."""
        if self._in_steps:
            return self._first.run(sent)
        if len(self.encoders) == 1:
            return {self.components[0]: self._first.encode(*sent)}
        made = self._first.forward(*sent)
        return {component: each.take(made) for component, each in self.encoders.items()}

    def fetch(self, made: Any, count: int) -> dict[Component, Array]:  # noqa: ANN401
        """Wait for the arrays of each component."""
        found: dict[Component, Any] = made
        if self._in_steps:
            found = {component: each.take(made) for component, each in self.encoders.items()}
        for component, arrays in found.items():
            if not isinstance(arrays, np.ndarray) or arrays.shape[:1] != (count,):
                gave = getattr(arrays, "shape", type(arrays).__name__)
                what = f"{component.name}: encode gave {gave} for {count} inputs"
                raise ShardwrightError(what, fix="give an array with a row for each input")
        return found


def passes(
    encoders: Mapping[Component, Encoder | PictureWriter], views: Mapping[Component, View]
) -> list[Pass]:
    """Group encoders that share a model and see the same input; pictures are only written."""
    groups: dict[tuple[int, View | None], dict[Component, Any]] = {}
    for component, encoder in encoders.items():
        if component.is_array:
            shared = id(getattr(encoder, "shares", encoder))
            groups.setdefault((shared, views.get(component)), {})[component] = encoder
    return list(map(Pass, groups.values()))


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of one shape for one pass, and the samples that they belong to."""

    through: Pass
    samples: list[Sample]
    inputs: tuple[Array, ...]

    def parts(self, step: int) -> list[Batch]:
        """Cut it into batches of at most so many samples."""
        return [
            Batch(
                self.through,
                self.samples[first : first + step],
                tuple(column[first : first + step] for column in self.inputs),
            )
            for first in range(0, len(self.samples), step)
        ]


class Batcher:
    """Makes batches and encodes them; the batches get smaller when memory runs out."""

    def __init__(
        self,
        passes: Sequence[Pass],
        batch_size: int,
        progress: Progress,
        rooms: Mapping[Pass, int],
    ) -> None:
        self.passes, self.batch_size, self.progress = passes, batch_size, progress
        self.seconds = dict.fromkeys(passes, 0.0)  # that encoding took
        self._room = dict(rooms)  # numbers that fit on the device, where known
        self._batches: Counter[Pass] = Counter()
        self._inputs: Counter[Pass] = Counter()

    def stack(self, samples: Iterable[Sample]) -> list[Batch]:
        """Stack the inputs of samples into batches, those of one shape together."""
        groups: dict[tuple[Pass, Shape, bool], list[Sample]] = {}
        for sample in samples:
            for through, inputs in sample.inputs.items():
                key = (through, inputs[0].shape, sample.alone)
                groups.setdefault(key, []).append(sample)
        batches = []
        for (through, _, alone), group in groups.items():
            step = 1 if alone else self._step(through, group[0].inputs[through])
            for first in range(0, len(group), step):
                part = group[first : first + step]
                columns = zip(*(sample.inputs.pop(through) for sample in part), strict=True)
                batches.append(Batch(through, part, tuple(map(np.stack, columns))))
                self._batches[through] += 1
                self._inputs[through] += len(part)
        # One model after the other, which keeps the caches of a device warm.
        return sorted(batches, key=lambda batch: self.passes.index(batch.through))

    def fills(self) -> dict[Pass, tuple[int, int]]:
        """Give the inputs of each pass that had any, and the batches that they were in."""
        return {each: (self._inputs[each], count) for each, count in self._batches.items()}

    def encode(self, batches: Iterable[Batch]) -> None:
        """Encode batches; a sample that cannot be encoded even alone is a failure.

        The next is begun before the present one is waited for, so a device always has work.
        """
        waiting = deque(batches)
        begun: deque[tuple[Batch, Any]] = deque()  # and what the model gives for them
        most = 2
        while waiting or begun:
            fetching = not waiting or len(begun) >= most
            batch = begun[0][0] if fetching else waiting.popleft()
            through, count, found = batch.through, len(batch.samples), {}
            step = self._step(through, tuple(column[0] for column in batch.inputs))
            if not fetching and count > step:
                waiting.extendleft(reversed(batch.parts(step)))
                continue
            began = time.monotonic()
            try:
                with at_once():
                    if fetching:
                        found = through.fetch(begun.popleft()[1], count)
                    else:
                        begun.append((batch, through.run(through.send(*batch.inputs))))
            except (ShardwrightError, DeviceLostError):
                raise
            except MemoryError:
                if begun:  # which takes memory too: fetch it first
                    most = 1
                    waiting.appendleft(batch)
                elif count > 1:
                    self.halve(through, batch.inputs)
                    waiting.appendleft(batch)
                else:
                    detail = f"{through.name}: not enough memory for it"
                    batch.samples[0].failure = ("out_of_memory", detail)
            except Exception as error:  # a model's own code: find the sample that causes it
                if count > 1:
                    waiting.extendleft(reversed(batch.parts(1)))
                else:
                    batch.samples[0].failure = ("encoder_failed", f"{through.name}: {error}")
            finally:
                self.seconds[through] += time.monotonic() - began
            for component, arrays in found.items():
                for sample, array in zip(batch.samples, arrays, strict=True):
                    if component in sample.make:
                        sample.arrays[component] = array

    @property
    def takes_turns(self) -> bool:
        """Whether models have to make room for one another on a device."""
        return any(through.takes_turns for through in self.passes)

    def full(self, through: Pass, size: Size) -> tuple[Array, ...]:
        """Give the inputs of a full batch, to try a pass with."""
        inputs = probe(through, size)
        return tuple(np.stack([column] * self._step(through, inputs)) for column in inputs)

    def halve(self, through: Pass, inputs: tuple[Array, ...]) -> None:
        """Make the batches of a pass half as large as these inputs, which do not fit."""
        count = len(inputs[0])
        step = count // 2
        self._room[through] = step * sum(column[0].size for column in inputs)
        self.progress.warn(f"{through.name}: no memory for {count} images at a time; trying {step}")

    def _step(self, through: Pass, inputs: tuple[Array, ...]) -> int:
        """Choose how many samples to encode at a time."""
        room = self._room.get(through)
        numbers = sum(column.size for column in inputs)
        return self.batch_size if room is None else max(1, min(self.batch_size, room // numbers))


def probe(through: Pass, size: Size) -> tuple[Array, ...]:
    """Prepare something to try a pass with."""
    if through.source == "caption":
        tokens = through.prepare("a probe")
        for component in through.components:
            require_mask(component, tokens.mask)
        return tokens.ids, tokens.mask
    shape = (size.height, size.width, 3)
    picture = (np.arange(np.prod(shape)) + 99).astype(np.uint8).reshape(shape)
    picture.setflags(write=False)  # as it is at work
    return (through.prepare(picture),)


def try_out(through: Pass) -> None:
    """Encode something small, so that a broken model stops the run before it begins."""
    size = Size(_PROBE_SIDE, _PROBE_SIDE)
    try:
        with at_once():
            made = through.encode(*(np.stack([column]) for column in probe(through, size)))
    except (ShardwrightError, DeviceLostError):
        raise
    except MemoryError:
        what = f"{through.name}: the device has no memory for even one small image"
        raise ShardwrightError(what, fix="free some, or give another --device") from None
    except Exception as error:
        raise ShardwrightError(f"{through.name}: the encoder failed: {error}") from error
    for component, arrays in made.items():
        require_shape(component, arrays[0], size)


def require_shape(component: Component, array: Array, size: Size) -> None:
    """Raise if an array is not of its component's shape and kind; trimming comes later."""
    shape = component.shape_for(*size)
    fits = array.shape == shape or (ANY in component.shape and component.fits(array.shape, *size))
    if not fits or (array.dtype.kind == "f") is not component.is_float:
        expected = f"expected {component.dtype} {shape}"
        what = f"{component.name}: the encoder gave {array.dtype} {array.shape}, {expected}"
        raise ShardwrightError(what, fix="use the right model")


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
