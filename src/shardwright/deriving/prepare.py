"""A sample in the pipeline: from what is missing, through the prepared inputs, to the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from shardwright.deriving import captions, images
from shardwright.deriving.captions import CaptionError
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.inventory import recorded_caption, recorded_size
from shardwright.deriving.settings import InForce
from shardwright.deriving.sources import Source, is_regular
from shardwright.encoders.base import Encoder
from shardwright.recipes import Component
from shardwright.store import facts
from shardwright.store.facts import Facts, ImageFile
from shardwright.store.records import Record

Array = NDArray[Any]


@dataclass
class Sample:
    """What is known of one image for which something is missing."""

    source: Source
    make: tuple[Component, ...]  # the arrays that are missing
    record: Record | None  # as it stands in the store
    facts: Facts | None  # what is known of its file and caption
    kept: list[str]  # the arrays of its picture that are there and stay
    wants_text: bool  # whether its caption is to be tokenized
    caption: str | None  # None if it is read beside the image, or else in the record
    size: Size | None = None
    masks: dict[str, list[int]] = field(default_factory=dict)  # by the field of the record
    image: ImageFile | None = None  # the file that was read
    tokens_lost: dict[str, int] = field(default_factory=dict)  # by component, where known
    cut_at: dict[str, int] = field(default_factory=dict)
    inputs: dict[Component, tuple[Array, ...]] = field(default_factory=dict)  # of encode
    arrays: dict[Component, Array] = field(default_factory=dict)  # what it gave
    failure: tuple[str, str] | None = None  # the reason's name and a detail
    unapplied: str | None = None  # why its colour profile was not applied, if it was not

    @property
    def nbytes(self) -> int:
        """Count the bytes that wait to be encoded."""
        return sum(array.nbytes for arrays in self.inputs.values() for array in arrays)


def read(sample: Sample, settings: InForce, colours: Mapping[Component, str]) -> Sample:
    """Read an image and its caption, once for all encoders, and prepare what they will take."""
    try:
        if sample.wants_text:
            _read_caption(sample, settings)
        _read_image(sample, settings, colours)
    except (BadImageError, CaptionError) as error:
        sample.failure = (error.args[0], error.args[1])
        sample.inputs.clear()
    return sample


def _read_caption(sample: Sample, settings: InForce) -> None:
    if not sample.caption:
        sample.caption = captions.beside(sample.source) or recorded_caption(sample.record)
    if sample.caption is None:
        raise CaptionError("no_caption", "the text beside it is blank")
    for component, encoder in settings.encoders.items():
        if component.source == "caption":
            tokens = _prepared(encoder, sample.caption)
            if component.mask is not None:
                sample.masks[component.mask.field] = tokens.mask.tolist()
                assert len(tokens.mask) == component.mask.length
            if tokens.lost is not None:
                sample.tokens_lost[component.name] = tokens.lost
            if tokens.cut_at is not None:
                sample.cut_at[component.name] = tokens.cut_at
            if component in sample.make:
                sample.inputs[component] = (tokens.ids, tokens.mask)


def _read_image(sample: Sample, settings: InForce, colours: Mapping[Component, str]) -> None:
    path, fit = sample.source.path, settings.request.fit
    made = [component for component in sample.make if component.source == "image"]
    if not made:
        # The arrays that are there show the picture of the record, whatever the file holds now.
        sample.size = recorded_size(sample.record) or images.measure(path)
        return
    with suppress(OSError):  # reading it gives the reason
        sample.image = facts.image_file(path) if is_regular(path) else None
    pictures, sample.unapplied = images.read(path, {colours[component] for component in made})
    for component in made:
        picture = pictures[colours[component]]
        sample.size = Size(picture.shape[1], picture.shape[0])
        if component.follows_picture:
            frame = images.frame(fit, sample.size, component, settings.store.recipe)
            picture = images.framed(picture, frame)
        sample.inputs[component] = (_prepared(settings.encoders[component], picture),)


def _prepared(encoder: Encoder, source: Any) -> Any:  # noqa: ANN401 - a picture or a caption
    try:
        return encoder.prepare(source)
    except Exception as error:  # a model's own code may raise anything
        raise BadImageError("not_prepared", f"{encoder.component.name}: {error}") from error
