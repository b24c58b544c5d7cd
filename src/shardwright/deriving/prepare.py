"""A sample in the pipeline: from what is missing, through the prepared inputs, to the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shardwright.deriving import captions, images
from shardwright.deriving.captions import CAPTION, CaptionError, Row
from shardwright.deriving.images import BadImageError, Size, recorded_size
from shardwright.deriving.recorded import recorded_text
from shardwright.deriving.sources import Source
from shardwright.deriving.views import Look, View
from shardwright.deriving.views import look as look_here
from shardwright.errors import ShardwrightError
from shardwright.progress import quantity
from shardwright.recipes import Component
from shardwright.storage import extents
from shardwright.storage.extents import Extent
from shardwright.store.facts import TOO_LONG, Decoded, Facts, ImageFile, image_file
from shardwright.store.records import Record

if TYPE_CHECKING:
    from shardwright.deriving.batches import Pass

Array = NDArray[Any]
Looking = Callable[[Extent, Sequence[View]], Look]
Measuring = Callable[[Extent], Size]


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
    caption_given: bool | None = None  # False if it is read beside it, None if it is on record
    size: Size | None = None
    masks: dict[str, list[int]] = field(default_factory=dict)  # by the field of the record
    image: ImageFile | None = None  # the file that was read
    tokens_lost: dict[str, int] = field(default_factory=dict)  # by component, where known
    cut_at: dict[str, int] = field(default_factory=dict)
    inputs: dict[Pass, tuple[Array, ...]] = field(default_factory=dict)  # of encode
    arrays: dict[Component, Array] = field(default_factory=dict)  # what it gave
    pictures: dict[Component, bytes] = field(default_factory=dict)  # files
    made: dict[Component, Array | bytes] | None = None  # its files, once they are checked
    sealed: dict[Component, int] = field(default_factory=dict)  # their bytes, once they are written
    failure: tuple[str, str] | None = None  # the reason's name and a detail
    decoded: Decoded | None = None
    colour_space: str | None = None  # of the file
    animated: bool = False  # whether only the first of its frames was taken
    read_seconds: float = 0.0
    unapplied: str | None = None  # why its colour profile was not applied, if it was not
    alone: bool = False  # whether it is encoded by itself: its group has killed a worker

    @property
    def is_left_out(self) -> bool:
        """Whether its captions lose more tokens than the recipe allows; that is not a failure."""
        return self.failure is not None and self.failure[0] == TOO_LONG

    @property
    def nbytes(self) -> int:
        """Count the bytes that wait to be encoded or written."""
        waiting = sum(array.nbytes for arrays in self.inputs.values() for array in arrays)
        return waiting + sum(map(len, self.pictures.values()))


def file_bytes(file: Array | bytes) -> int:
    """Count the bytes of a picture file, or of an array without its header."""
    return len(file) if isinstance(file, bytes) else file.nbytes


def read(
    sample: Sample,
    texts: Sequence[str],
    passes: Sequence[Pass],
    views: Mapping[Component, View],
    look: Looking,
    measure: Measuring,
    most_lost: int | None = None,
) -> Sample:
    """Read an image and its captions, once for all encoders, and prepare what they will take.

    ``texts`` are the fields that its record needs; ``look`` and ``measure`` may look in another
    process. An image without a record is left out if its captions lose more than ``most_lost``
    tokens.
    """
    if sample.failure:  # it has killed its worker
        return sample
    try:
        read_texts(sample, texts)
        if sample.wants_text:
            for each in passes:
                if each.source == "caption":
                    _tokenize(sample, each)
        if sample.record is None:
            require_kept(sample.tokens_lost, most_lost)
        _read_image(sample, passes, views, look, measure)
    except (BadImageError, CaptionError) as error:
        sample.failure = (error.args[0], error.args[1])
        sample.inputs.clear()
        if sample.is_left_out and extents.is_at_hand(sample.source.place):
            with suppress(OSError):  # then it is not known which file it was
                sample.image = image_file(sample.source.place)
    return sample


def require_kept(tokens_lost: Mapping[str, int], most: int | None) -> None:
    """Raise if captions lose more tokens than the recipe allows."""
    name, lost = max(tokens_lost.items(), key=lambda item: item[1], default=("", 0))
    if most is not None and lost > most:
        detail = f"{quantity(lost, 'tokens')} lost by {name}, and max_tokens_lost is {most:,}"
        raise CaptionError(TOO_LONG, detail)


def read_texts(sample: Sample, needed: Sequence[str]) -> None:
    """Find the texts that are not known yet; a caption that no component needs may be blank."""
    for field_, text in sample.texts.items():
        if text:
            continue
        if field_ == CAPTION and (sample.wants_text or CAPTION not in needed):
            text = captions.beside(sample.source)
            sample.caption_given = False if text else None
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
    sample: Sample,
    passes: Sequence[Pass],
    views: Mapping[Component, View],
    look: Looking,
    measure: Measuring,
) -> None:
    place = sample.source.place
    made = [component for component in sample.make if component.source == "image"]
    if not made:
        # The arrays that are there show the picture of the record, whatever the file holds now.
        size = recorded_size(sample.record)
        sample.size = size or measure(images.fetched(place, head=True))
        return
    # Here, in one of many threads: a process that decodes would idle until the bytes come.
    place = images.fetched(place)
    through = [each for each in passes if not set(made).isdisjoint(each.components)]
    pictures = [component for component in made if not component.is_array]
    seen = [views[each.components[0]] for each in through] + [views[c] for c in pictures]
    found = (look if all(view.is_portable for view in seen) else look_here)(place, seen)
    before = sample.facts.image if sample.facts else None
    if sample.kept and before and found.file and before.xxh3 != found.file.xxh3:
        raise BadImageError(*other_picture(sample.kept, "use --update"))
    sample.size, sample.image, sample.unapplied = found.size, found.file, found.unapplied
    sample.decoded, sample.colour_space = found.decoded, found.colour_space
    sample.animated = found.animated
    made_of = iter(found.made)
    for each in through:
        array: Any = next(made_of)
        if views[each.components[0]].prepare is None:  # an encoder of the user's own
            array = _prepared(each, array)
        sample.inputs[each] = (array,)
    sample.pictures = dict(zip(pictures, made_of, strict=True))


def other_picture(kept: Sequence[str], fix: str) -> tuple[str, str]:
    """Say why nothing is made from a picture: arrays that stay show the one before."""
    was = "was" if len(kept) == 1 else "were"
    return "image_changed", f"it has changed since {', '.join(kept)} {was} made; {fix}"


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
