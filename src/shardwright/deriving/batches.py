"""Batches of one shape, encoded in steps that fit into the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.deriving.prepare import Array, Sample
from shardwright.encoders.base import Encoder
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import Component, Shape

BATCH_SIZE = 8  # where memory allows
_TRIAL_SIDE = 64


@dataclass(frozen=True)
class Batch:
    """Inputs of one shape for one encoder, and the samples that they belong to."""

    component: Component
    samples: list[Sample]
    inputs: tuple[Array, ...]


class Batcher:
    """Makes batches and encodes them; the batches get smaller when memory runs out."""

    def __init__(
        self,
        encoders: Mapping[Component, Encoder],
        batch_size: int,
        progress: Progress,
        rooms: Mapping[Component, int],
    ) -> None:
        self.encoders, self.batch_size, self.progress = encoders, batch_size, progress
        self._room = dict(rooms)  # numbers that fit on the device, where known

    def stack(self, samples: Iterable[Sample]) -> list[Batch]:
        """Stack the inputs of samples into batches, those of one shape together."""
        groups: dict[tuple[Component, Shape], list[Sample]] = {}
        for sample in samples:
            for component, inputs in sample.inputs.items():
                groups.setdefault((component, inputs[0].shape), []).append(sample)
        batches = []
        for (component, _), group in groups.items():
            step = self._step(component, group[0].inputs[component])
            for first in range(0, len(group), step):
                part = group[first : first + step]
                columns = zip(*(sample.inputs.pop(component) for sample in part), strict=True)
                batches.append(Batch(component, part, tuple(map(np.stack, columns))))
        # One model after the other, which keeps the caches of a device warm.
        order = list(self.encoders)
        return sorted(batches, key=lambda batch: order.index(batch.component))

    def encode(self, batch: Batch) -> None:
        """Encode a batch; a sample that cannot be encoded even alone is a failure."""
        encoder, done = self.encoders[batch.component], 0
        step = self._step(batch.component, tuple(column[0] for column in batch.inputs))
        while done < len(batch.samples):
            part = batch.samples[done : done + step]
            try:
                with at_once():
                    made = encoder.encode(*(column[done : done + step] for column in batch.inputs))
            except ShardwrightError:
                raise
            except MemoryError:
                if len(part) > 1:
                    step = self._halve(batch, len(part))
                    continue
                detail = f"{batch.component.name}: not enough memory for it"
                part[0].failure = ("out_of_memory", detail)
            except Exception as error:  # a model's own code: find the sample that causes it
                if len(part) > 1:
                    step = 1
                    continue
                part[0].failure = ("encoder_failed", f"{batch.component.name}: {error}")
            else:
                for sample, array in zip(part, made, strict=True):
                    sample.arrays[batch.component] = array
            done += len(part)

    def _step(self, component: Component, inputs: tuple[Array, ...]) -> int:
        """Choose how many samples to encode at a time."""
        room = self._room.get(component)
        numbers = sum(column.size for column in inputs)
        return self.batch_size if room is None else max(1, min(self.batch_size, room // numbers))

    def _halve(self, batch: Batch, count: int) -> int:
        step = count // 2
        self._room[batch.component] = step * sum(column[0].size for column in batch.inputs)
        self.progress.warn(
            f"{batch.component.name}: no memory for {count} images at a time; trying {step}"
        )
        return step


def try_out(encoder: Encoder) -> None:
    """Encode something small, so that a broken model stops the run before it begins."""
    component = encoder.component
    try:
        with at_once():
            prepare: Any = encoder.prepare
            if component.source == "caption":
                tokens = prepare("a trial")
                inputs: tuple[Array, ...] = (tokens.ids, tokens.mask)
            else:
                inputs = (prepare(np.full((_TRIAL_SIDE, _TRIAL_SIDE, 3), 99, np.uint8)),)
            made = encoder.encode(*(column[None] for column in inputs))
    except ShardwrightError:
        raise
    except MemoryError:
        what = f"{component.name}: the device has no memory for even one small image"
        raise ShardwrightError(what, fix="free some, or give another --device") from None
    except Exception as error:
        raise ShardwrightError(f"{component.name}: the encoder failed: {error}") from error
    require_shape(component, made[0], component.shape_for(_TRIAL_SIDE, _TRIAL_SIDE))


def require_shape(component: Component, array: Array, shape: Shape) -> None:
    """Raise if an array is not of its component's shape and kind."""
    if array.shape != shape or (array.dtype.kind == "f") is not component.is_float:
        expected = f"expected {component.dtype} {shape}"
        what = f"{component.name}: the encoder gave {array.dtype} {array.shape}, {expected}"
        raise ShardwrightError(what, fix="use the right model")
