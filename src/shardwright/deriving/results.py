"""What becomes of a sample: its arrays as they are stored, its record, and what is known of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from shardwright.deriving.batches import require_shape
from shardwright.deriving.captions import CAPTION
from shardwright.deriving.images import Size
from shardwright.deriving.passes import Array
from shardwright.deriving.prepare import Sample
from shardwright.deriving.views import View
from shardwright.recipes import FORMAT_VERSION, Component, Recipe
from shardwright.recipes.compare import dtype_text
from shardwright.store.arrays import is_finite, stored
from shardwright.store.facts import Facts
from shardwright.store.records import CROP, Record, ordered

_DIGITS = 4  # of facts


@dataclass(frozen=True)
class Results:
    """Turns what the encoders made into what is stored, by a recipe."""

    recipe: Recipe
    following: Mapping[Component, View]  # what arrays that follow the picture show of it
    keeps: bool  # whether valid arrays of a sample that failed are stored

    def check(self, sample: Sample) -> None:
        """Check what was made, and keep it as it is stored, which takes less than it did."""
        sample.made = self._checked(sample)
        sample.arrays.clear()
        sample.pictures.clear()

    def _checked(self, sample: Sample) -> dict[Component, Array | bytes]:
        """Give the files of a sample: arrays as they are stored, where values must be finite.

        Valid arrays of a sample that failed are kept, and not made again next time; except those
        made from its caption, which no record has.
        """
        valid: dict[Component, Array | bytes] = dict(sample.pictures)
        for component, array in sample.arrays.items():
            size = _known(sample.size)
            if component.follows_picture:
                size = self.following[component].frame(size).size
            require_shape(component, array, size)
            found = as_stored(component, array, sample.masks)
            if isinstance(found, str):
                sample.failure = sample.failure or ("not_finite", f"{component.name}: {found}")
            else:
                valid[component] = found
        if sample.failure:
            return {c: found for c, found in valid.items() if self.keeps and c.source == "image"}
        return valid

    def seen(self, sample: Sample, known: Facts, arrays: Collection[Component]) -> Facts:
        """Add what is known of an image's file, and of what its new arrays show of the picture."""
        size = _known(sample.size)
        frames = [view.frame(size) for c, view in self.following.items() if c in arrays]
        if frames:
            known = replace(
                known,
                enlarged=round(max(frame.enlarged for frame in frames), _DIGITS),
                cropped=round(max(frame.cropped(size) for frame in frames), _DIGITS),
            )
        return replace(
            known,
            image=sample.image,
            outdated=_outdated(sample, arrays),
            decoded=sample.decoded,
            colour_space=sample.colour_space,
            animated=sample.animated,
        )

    def record(self, sample: Sample) -> Record | None:
        """Write the record of a sample; None while its mask is missing."""
        source, size = sample.source, _known(sample.size)
        record: Record = {"image_id": source.image_id, "image_path": source.path}
        record |= (sample.record or {}) | sample.columns
        for name, value in sample.columns.items():
            if value is None:
                del record[name]
        record["height"], record["width"] = size.height, size.width
        record["aspect_bucket"] = str(self.recipe.bucket_for(*size))
        record["format_version"] = FORMAT_VERSION
        if sample.wants_text:
            record |= sample.texts | sample.masks
        if CAPTION not in self.recipe.texts:
            record[CAPTION] = sample.texts[CAPTION]
        for component, view in self.following.items():
            if component in sample.make or sample.record is None:
                record.pop(CROP, None)
                if view.fit == "bucket":
                    record[CROP] = list(view.frame(size).box)
        if not all(field in record for field in self.recipe.record_fields):
            return None
        return ordered(record, self.recipe)


def with_tokens(sample: Sample, known: Facts) -> Facts:
    """Add how many tokens the captions of a sample lost."""
    return replace(known, tokens_lost=sample.tokens_lost, cut_at=sample.cut_at, left_out=None)


def _outdated(sample: Sample, arrays: Collection[Component]) -> list[str]:
    """Name the arrays of an image that show an earlier file than those made now."""
    before = sample.facts
    if before is None or before.image is None or sample.image is None:
        return []
    made = [component.name for component in arrays]
    same = before.image.xxh3 == sample.image.xxh3
    return [name for name in (before.outdated if same else sample.kept) if name not in made]


def as_stored(
    component: Component, array: Array, masks: Mapping[str, Sequence[int]]
) -> Array | str:
    """Give what an encoder made as it is stored, or say why it cannot be; masks by their field."""
    if component.trim and component.mask:
        array = array[np.array(masks[component.mask.field], bool)]
        if not len(array):
            return "the mask keeps no token"
    found = stored(array, component)
    held = component.is_float or np.array_equal(found, array)
    if held and is_finite(found, component):
        return found
    what = "too large a value" if np.isfinite(array).all() else "NaN or infinity"
    return f"{what} for {dtype_text(component)}"


def _known(size: Size | None) -> Size:
    assert size is not None  # a sample without one has failed
    return size
