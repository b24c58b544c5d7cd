"""A sample in the pipeline: from what is missing, through the prepared inputs, to the arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardwright.deriving import captions, images
from shardwright.deriving.captions import CAPTION, CaptionError, Row
from shardwright.deriving.images import BadImageError, Size
from shardwright.deriving.inventory import recorded_size, recorded_text
from shardwright.deriving.passes import Array, Pass
from shardwright.deriving.settings import InForce
from shardwright.deriving.sources import Source, is_regular
from shardwright.errors import ShardwrightError
from shardwright.recipes import Component
from shardwright.store import facts
from shardwright.store.facts import Facts, ImageFile
from shardwright.store.records import Record


@dataclass
class Sample:
    """What is known of one image for which something is missing."""

    source: Source
    make: tuple[Component, ...]  # the arrays that are missing
    record: Record | None  # as it stands in the store
    facts: Facts | None  # what is known of its file and caption
    kept: list[str]  # the arrays of its picture that are there and stay
    wants_text: bool  # whether its caption is to be tokenized
    texts: dict[str, str | None]  # None for one that is read beside it, or else in the record
    columns: Row  # others that the user gave
    size: Size | None = None
    masks: dict[str, list[int]] = field(default_factory=dict)  # by the field of the record
    image: ImageFile | None = None  # the file that was read
    tokens_lost: dict[str, int] = field(default_factory=dict)  # by component, where known
    cut_at: dict[str, int] = field(default_factory=dict)
    inputs: dict[Pass, tuple[Array, ...]] = field(default_factory=dict)  # of encode
    arrays: dict[Component, Array] = field(default_factory=dict)  # what it gave
    pictures: dict[Component, bytes] = field(default_factory=dict)  # files
    failure: tuple[str, str] | None = None  # the reason's name and a detail
    read_seconds: float = 0.0
    unapplied: str | None = None  # why its colour profile was not applied, if it was not

    @property
    def nbytes(self) -> int:
        """Count the bytes that wait to be encoded or written."""
        waiting = sum(array.nbytes for arrays in self.inputs.values() for array in arrays)
        return waiting + sum(map(len, self.pictures.values()))


def read(
    sample: Sample, settings: InForce, passes: Sequence[Pass], colours: Mapping[Component, str]
) -> Sample:
    """Read an image and its captions, once for all encoders, and prepare what they will take."""
    try:
        _read_texts(sample, settings.store.recipe.texts)
        if sample.wants_text:
            for each in passes:
                if each.source == "caption":
                    _tokenize(sample, each)
        _read_image(sample, settings, passes, colours)
    except (BadImageError, CaptionError) as error:
        sample.failure = (error.args[0], error.args[1])
        sample.inputs.clear()
    return sample


def _read_texts(sample: Sample, needed: Sequence[str]) -> None:
    """Find the texts that are not known yet; a caption that no component needs may be blank."""
    for field_, text in sample.texts.items():
        if text:
            continue
        if field_ == CAPTION and (sample.wants_text or CAPTION not in needed):
            text = captions.beside(sample.source)
        sample.texts[field_] = text or recorded_text(sample.record, field_)
        if field_ not in needed:
            sample.texts[field_] = sample.texts[field_] or ""
        elif sample.wants_text and not sample.texts[field_]:
            what = "the text beside it is blank" if field_ == CAPTION else f"its {field_} is blank"
            raise CaptionError("no_caption", what)


def _tokenize(sample: Sample, each: Pass) -> None:
    tokens = _prepared(each, sample.texts[each.field])
    for component in each.components:
        if component.mask is not None:
            require_mask(component, tokens.mask)
            sample.masks[component.mask.field] = tokens.mask.tolist()
        if tokens.lost is not None:
            sample.tokens_lost[component.name] = tokens.lost
        if tokens.cut_at is not None:
            sample.cut_at[component.name] = tokens.cut_at
    if not set(sample.make).isdisjoint(each.components):
        sample.inputs[each] = (tokens.ids, tokens.mask)


def _read_image(
    sample: Sample, settings: InForce, passes: Sequence[Pass], colours: Mapping[Component, str]
) -> None:
    path, recipe = sample.source.path, settings.store.recipe
    made = [component for component in sample.make if component.source == "image"]
    if not made:
        # The arrays that are there show the picture of the record, whatever the file holds now.
        sample.size = recorded_size(sample.record) or images.measure(path)
        return
    with suppress(OSError):  # reading it gives the reason
        sample.image = facts.image_file(path) if is_regular(path) else None
    pictures, sample.unapplied, plain = images.read(path, {colours[c] for c in made})
    height, width = next(iter(pictures.values())).shape[:2]
    sample.size = Size(width, height)
    for each in passes:
        wanted = [component for component in each.components if component in made]
        if wanted:
            picture = pictures[colours[wanted[0]]]
            if wanted[0].follows_picture:
                frame = images.frame(recipe.fit, sample.size, wanted[0], recipe)
                picture = images.framed(picture, frame)
            sample.inputs[each] = (_prepared(each, picture),)
    for component in made:
        if not component.is_array:
            frame = images.frame(recipe.fit, sample.size, component, recipe)
            picture = images.framed(pictures[colours[component]], frame)
            original = _original(sample) if plain and frame.size == sample.size else None
            writer: Any = settings.encoders[component]
            try:
                sample.pictures[component] = writer.write(picture, original)
            except (OSError, ValueError) as error:  # too large for the format
                raise BadImageError("not_prepared", f"{component.name}: {error}") from error


def _original(sample: Sample) -> bytes | None:
    """Read an image file as it is; None if it is no longer the one that was decoded."""
    with suppress(OSError):
        data = Path(sample.source.path).read_bytes()
        if sample.image and xxhash.xxh3_64_hexdigest(data) == sample.image.xxh3:
            return data
    return None


def require_mask(component: Component, mask: Array) -> None:
    """Raise if an encoder gives another mask than its component has."""
    if component.mask is None:
        return
    length = component.mask.length
    if mask.shape != (length,):
        what = f"the encoder gave a mask of {len(mask)} tokens, expected {length}"
    elif mask.dtype.kind not in "biu" or mask.max() > 1 or mask.min() < 0:
        what = "the encoder gave a mask of other values than the integers 0 and 1"
    else:
        return
    fix = "correct the encoder, or tokens in the recipe"
    raise ShardwrightError(f"{component.name}: {what}", fix=fix)


def _prepared(each: Pass, source: Any) -> Any:  # noqa: ANN401 - a picture or a caption
    try:
        return each.prepare(source)
    except Exception as error:  # a model's own code may raise anything
        raise BadImageError("not_prepared", f"{each.name}: {error}") from error
