"""Batches of one shape, encoded in steps that fit into the memory of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.deriving.images import Size
from shardwright.deriving.passes import Array, Pass
from shardwright.deriving.prepare import Sample, require_mask
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import ANY, Component, Shape

BATCH_SIZE = 8  # where memory allows
_TRIAL_SIDE = 64


@dataclass(frozen=True)
class Batch:
    """Inputs of one shape for one pass, and the samples that they belong to."""

    through: Pass
    samples: list[Sample]
    inputs: tuple[Array, ...]


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
        self._room = dict(rooms)  # numbers that fit on the device, where known
        self._batches: Counter[Pass] = Counter()
        self._inputs: Counter[Pass] = Counter()

    def stack(self, samples: Iterable[Sample]) -> list[Batch]:
        """Stack the inputs of samples into batches, those of one shape together."""
        groups: dict[tuple[Pass, Shape], list[Sample]] = {}
        for sample in samples:
            for through, inputs in sample.inputs.items():
                groups.setdefault((through, inputs[0].shape), []).append(sample)
        batches = []
        for (through, _), group in groups.items():
            step = self._step(through, group[0].inputs[through])
            for first in range(0, len(group), step):
                part = group[first : first + step]
                columns = zip(*(sample.inputs.pop(through) for sample in part), strict=True)
                batches.append(Batch(through, part, tuple(map(np.stack, columns))))
                self._batches[through] += 1
                self._inputs[through] += len(part)
        # One model after the other, which keeps the caches of a device warm.
        return sorted(batches, key=lambda batch: self.passes.index(batch.through))

    def fills(self) -> dict[Pass, float]:
        """Give the mean number of inputs in a batch, for each pass that had any."""
        return {each: self._inputs[each] / count for each, count in self._batches.items()}

    def encode(self, batch: Batch) -> None:
        """Encode a batch; a sample that cannot be encoded even alone is a failure."""
        through, done = batch.through, 0
        step = self._step(through, tuple(column[0] for column in batch.inputs))
        while done < len(batch.samples):
            part = batch.samples[done : done + step]
            try:
                with at_once():
                    made = through.encode(*(column[done : done + step] for column in batch.inputs))
            except ShardwrightError:
                raise
            except MemoryError:
                if len(part) > 1:
                    step = self._halve(batch, len(part))
                    continue
                detail = f"{through.name}: not enough memory for it"
                part[0].failure = ("out_of_memory", detail)
            except Exception as error:  # a model's own code: find the sample that causes it
                if len(part) > 1:
                    step = 1
                    continue
                part[0].failure = ("encoder_failed", f"{through.name}: {error}")
            else:
                for component, arrays in made.items():
                    for sample, array in zip(part, arrays, strict=True):
                        if component in sample.make:
                            sample.arrays[component] = array
            done += len(part)

    def _step(self, through: Pass, inputs: tuple[Array, ...]) -> int:
        """Choose how many samples to encode at a time."""
        room = self._room.get(through)
        numbers = sum(column.size for column in inputs)
        return self.batch_size if room is None else max(1, min(self.batch_size, room // numbers))

    def _halve(self, batch: Batch, count: int) -> int:
        step = count // 2
        self._room[batch.through] = step * sum(column[0].size for column in batch.inputs)
        self.progress.warn(
            f"{batch.through.name}: no memory for {count} images at a time; trying {step}"
        )
        return step


def try_out(through: Pass) -> None:
    """Encode something small, so that a broken model stops the run before it begins."""
    size = Size(_TRIAL_SIDE, _TRIAL_SIDE)
    try:
        with at_once():
            if through.source == "caption":
                tokens = through.prepare("a trial")
                for component in through.components:
                    require_mask(component, tokens.mask)
                inputs: tuple[Array, ...] = (tokens.ids, tokens.mask)
            else:
                picture = np.full((*size, 3), 99, np.uint8)
                picture.setflags(write=False)  # as it is at work
                inputs = (through.prepare(picture),)
            made = through.encode(*(np.stack([column]) for column in inputs))
    except ShardwrightError:
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
