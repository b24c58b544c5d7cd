"""How samples are encoded, as a value that can be sent to a worker; and one device that does it."""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from shardwright import encoders
from shardwright.deriving import images, machine, prepare
from shardwright.deriving.batches import (
    BATCH_SIZE,
    Batcher,
    Pass,
    passes,
    require_shape,
    try_out,
    tune,
)
from shardwright.deriving.decoders import Decoders, Heads, OneDecoder, children_for, copies_for
from shardwright.deriving.images import BadImageError, recorded_size
from shardwright.deriving.pipeline import REACH, Order, Pipeline, Report, Said, Sink
from shardwright.deriving.prepare import Array, Measuring, Sample
from shardwright.deriving.results import as_stored
from shardwright.deriving.views import View, look
from shardwright.encoders.base import Encoder, Options, PictureWriter, preparing
from shardwright.errors import ShardwrightError
from shardwright.interrupts import at_once
from shardwright.progress import Progress
from shardwright.recipes import Component, Recipe

_WAITING = 16  # threads that may wait for a store, while others have images decoded


@dataclass(frozen=True)
class Encoding:
    """How samples are made; small, and picklable unless encoders of the caller's are among it."""

    recipe: Recipe
    encoders: encoders.Choice
    components: tuple[Component, ...]  # whose encoders are needed
    dtypes: Mapping[str, str | None]  # by component: the precision
    views: Mapping[Component, View]  # what components see, without what encoders do to it
    work: tuple[Component, ...]  # of which arrays are made
    empties: tuple[Component, ...]  # of which the empty caption is encoded too
    batch_size: int | None  # None for what fits into memory
    compile: bool
    cores: int  # for reading
    reach: int = REACH  # images that a device sees ahead
    waits: bool = False  # whether images come from a store that takes some time to answer
    # Whether no image may be decoded in this process, because its death would end the run. Not for
    # other processes: they are started again.
    guarded: bool = False
    # Encoders that are in memory already; not sent to other processes.
    loaded: Mapping[Component, Encoder | PictureWriter] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "loaded": {}, "guarded": False}


class DeviceEncoder:
    """The encoders of one device, and the pipeline through them."""

    def __init__(self, encoding: Encoding, device: str, progress: Progress) -> None:
        """Load the encoders, and try them: a broken model stops a run before it begins."""
        self.encoding, self.progress = encoding, progress
        found, shared = dict(encoding.loaded), dict[Any, Any]()
        for component in encoding.components:
            if component not in found:
                options = Options(device, encoding.dtypes.get(component.name))
                with at_once():
                    found[component] = encoders.load(encoding.encoders, component, options, shared)
        self.views = {c: _complete(view, c, found.get(c)) for c, view in encoding.views.items()}
        self.passes = passes(found, self.views)
        self.so_far = Report()
        for each in self.passes:
            if not set(encoding.work).isdisjoint(each.components):
                try_out(each)

    def empties(self) -> dict[str, Array]:
        """Encode the empty caption; give what is stored, by the suffix of its member."""
        found: dict[str, Array] = {}
        for each in self.passes:
            if wanted := [c for c in each.components if c in self.encoding.empties]:
                found |= _empty(each, wanted, self.progress)
        return found

    def run(
        self,
        samples: Iterator[Sample],
        sink: Sink[Said],
        total: int,
        pictures: int,
        measure: Measuring = images.measure,
    ) -> Generator[Said, None, None]:
        """Run samples through a pipeline; ``pictures`` is how many of them are read, about."""
        encoding, recipe = self.encoding, self.encoding.recipe
        order = Order(samples, partial(_shape, views=self.views, measure=measure), encoding.reach)
        with ExitStack() as stack:
            children = children_for(pictures, encoding.cores)
            copied = encoding.guarded and not children
            if copied:
                children = copies_for(pictures, encoding.cores)
            decoders = stack.enter_context(Decoders(look, children, encoding.cores, copied=copied))
            # For samples that may have killed a worker: they must not kill this one.
            one, heads = stack.enter_context(OneDecoder(look)), stack.enter_context(Heads())

            def read(sample: Sample) -> Sample:
                ways = (one, heads) if sample.alone else (decoders, measure)
                most_lost = recipe.selection.max_tokens_lost
                return prepare.read(sample, recipe.texts, self.passes, self.views, *ways, most_lost)

            pipeline = Pipeline(order, read, self._batcher, sink, self.progress, self.so_far)
            yield from pipeline.run(total, self._readers(decoders))

    def _readers(self, decoders: Decoders[Any, Any]) -> int:
        """Choose how many threads read; none where they would share one core with the encoders."""
        if self.encoding.waits:
            return decoders.threads + _WAITING
        alone = self.encoding.cores == 1 and all(each.device == "cpu" for each in self.passes)
        return 0 if alone else decoders.threads

    @cached_property
    def _batcher(self) -> Batcher:
        """Make the batches of all pipelines, by the room that there is when models are loaded."""
        encoding = self.encoding
        rooms = {} if encoding.batch_size else machine.rooms(self.passes)
        batcher = Batcher(self.passes, encoding.batch_size or BATCH_SIZE, self.progress, rooms)
        if encoding.compile:
            bucket = encoding.recipe.buckets[0]
            for through in self.passes:
                if not set(encoding.work).isdisjoint(through.components):
                    tune(through, batcher, images.Size(bucket.width, bucket.height))
        return batcher

    def report(self) -> Report:
        """Say what was done."""
        devices = {each.device for each in self.passes} | {"cpu"}
        return replace(
            self.so_far,
            encode={each.name: took for each, took in self._batcher.seconds.items() if took},
            fills={
                component.name: fill
                for each, fill in self._batcher.fills().items()
                for component in each.components
            },
            memory={device: machine.peak_memory(device) for device in sorted(devices)},
        )


def _shape(sample: Sample, views: Mapping[Component, View], measure: Measuring) -> Hashable:
    """Give what samples that are encoded together have in common: the sizes of what is encoded."""
    if sample.alone:  # then their order is that of the images
        return None
    following = [c for c in sample.make if c.follows_picture and c.is_array]
    if not following:
        return None
    try:
        size = sample.size or recorded_size(sample.record)
        size = size or measure(sample.source.place)
        return tuple(views[component].frame(size).size for component in following)
    except BadImageError:  # reading it gives the reason
        return "unreadable"


def _complete(view: View, component: Component, encoder: object) -> View:
    """Add what an encoder does to what its component sees."""
    writer: Any = None if component.is_array else encoder
    return replace(view, prepare=preparing(encoder), writer=writer)


def _empty(
    through: Pass, components: Collection[Component], progress: Progress
) -> dict[str, Array]:
    """Encode the empty caption; give arrays and masks of some components of a pass, by suffix."""
    try:
        with at_once():
            tokens = through.prepare("")
            made = through.encode(tokens.ids[None], tokens.mask[None])
    except ShardwrightError:
        raise
    except Exception as error:  # a user's own encoder may not know what to do with it
        progress.warn(_nothing(through.name, str(error)))
        return {}
    found: dict[str, Array] = {}
    for component in components:
        (array,) = made[component]
        require_shape(component, array, images.Size(0, 0))
        masks = {component.mask.field: tokens.mask} if component.mask else {}
        stored = as_stored(component, array, masks)
        if isinstance(stored, str):
            progress.warn(_nothing(component.name, stored))
            continue
        found[component.suffix] = stored
        if component.mask is not None:
            found[component.mask.suffix] = np.array(tokens.mask, np.uint8)
    return found


def _nothing(name: str, why: str) -> str:
    return f"{name}: no embedding of the empty caption: {why}"
