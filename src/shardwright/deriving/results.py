"""What becomes of a sample: its arrays as they are stored, its record, and what is known of it.

Arrays are sealed where they were made, then published with their records. Sealed means: on the
disk, under a temporary name. A worker may seal them in another process. Only the process that holds
the lock of the store publishes them and writes records, in the order of the images.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from shardwright.deriving.batches import require_shape
from shardwright.deriving.captions import CAPTION
from shardwright.deriving.images import Size
from shardwright.deriving.outcomes import Outcomes
from shardwright.deriving.prepare import Array, Sample, file_bytes
from shardwright.deriving.summary import DeriveSummary
from shardwright.deriving.views import View
from shardwright.progress import Progress
from shardwright.recipes import FORMAT_VERSION, Component, Recipe
from shardwright.store.arrays import (
    is_finite,
    publish_arrays,
    remove_sealed,
    seal_arrays,
    stored,
)
from shardwright.store.facts import Facts, Truncated
from shardwright.store.journal import Journal
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import CROP, Record, ordered, own_fields
from shardwright.store.store import Store

if TYPE_CHECKING:
    from shardwright.deriving.settings import EncoderSettings

_DIGITS = 4  # of facts


@dataclass(frozen=True)
class Results:
    """Turns what the encoders made into what is stored, by a recipe."""

    recipe: Recipe
    following: Mapping[Component, View]  # what arrays that follow the picture show of it
    keeps: bool  # whether valid arrays of a sample that failed are stored

    def check(self, sample: Sample) -> None:
        """Check what was made, and keep it as it is stored, which takes less than it did.

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
            valid = {c: file for c, file in valid.items() if self.keeps and c.source == "image"}
        sample.made = valid
        sample.arrays.clear()
        sample.pictures.clear()

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
            outdated=[],
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
    return f"{what} for {component.dtype_text}"


def _known(size: Size | None) -> Size:
    assert size is not None  # a sample without one has failed
    return size


@dataclass(frozen=True)
class Sealer(Results):
    """Checks samples, and writes their arrays under temporary names."""

    store: Store  # that they will belong to

    def seal(self, samples: Sequence[Sample]) -> None:
        """Write the arrays of checked samples, and keep only their sizes."""
        group: list[tuple[Path, Array | bytes]] = []
        for sample in samples:
            for component, content in (sample.made or {}).items():
                group.append((self.store.array(component, sample.source.image_id), content))
                nbytes = file_bytes(content) + HEADER_BYTES * component.is_array
                sample.sealed[component] = nbytes
        seal_arrays(group)
        for sample in samples:
            sample.made = {}


class Committer:
    """Publishes groups of samples in the store, or in its next generation, and counts them."""

    def __init__(
        self,
        settings: EncoderSettings,
        records: Journal,
        facts: Journal,
        outcomes: Outcomes,
        summary: DeriveSummary,
        progress: Progress,
    ) -> None:
        self.settings, self.generation = settings, settings.generation
        self.store = self.generation.store if self.generation else settings.store
        keeps = self.generation is None
        self.sealer = Sealer(self.store.recipe, settings.following(), keeps, self.store)
        self.check = self.sealer.check  # of what was made in this process
        self.records, self.facts = records, facts
        self.outcomes, self.summary, self.progress = outcomes, summary, progress

    def commit(self, samples: Sequence[Sample]) -> None:
        """Seal and publish a group that was made in this process."""
        self.sealer.seal(samples)
        self.publish(samples)

    def publish(self, samples: Sequence[Sample]) -> None:
        """Make a group of sealed samples durable, and count each of them."""
        paths = [self.store.array(c, s.source.image_id) for s in samples for c in s.sealed]
        try:
            records = [None if sample.failure else self.sealer.record(sample) for sample in samples]
            # A record says what its arrays were made from, so a record that is there changes
            # first; a new one says that its arrays are there, so it comes last. In a generation
            # all are new.
            changed: list[Record] = []
            new: list[Record] = []
            for sample, record in zip(samples, records, strict=True):
                self._note(sample)
                if self.generation is not None and not sample.failure:
                    new.append(self._own(sample, record or {"image_id": sample.source.image_id}))
                elif record is not None and record != sample.record:
                    (new if sample.record is None else changed).append(record)
            # The facts first: arrays that are missing then are made again, and so are their facts.
            self.facts.commit()
            self._journal(changed)
        except BaseException:
            remove_sealed(paths)
            raise
        publish_arrays(paths)
        self._journal(new)
        self.progress.advance(len(samples))
        for sample, record in zip(samples, records, strict=True):
            for component, nbytes in sample.sealed.items():
                part = self.summary.components[component.name]
                part.made += 1
                part.bytes_written += nbytes
            if sample.failure:
                self._fail(sample, *sample.failure)
            else:
                self.outcomes.succeed(bool(sample.make) or record != sample.record)
                if sample.unapplied:
                    self.outcomes.leave_profile(sample.source, sample.unapplied)

    def _own(self, sample: Sample, record: Record) -> Record:
        """Leave out columns that were not given: they may change in the store before the swap."""
        if sample.record is None:
            return record
        given = own_fields(self.store.recipe) | sample.columns.keys()
        cleared = {name: None for name, value in sample.columns.items() if value is None}
        return {name: value for name, value in record.items() if name in given} | cleared

    def _note(self, sample: Sample) -> None:
        """Journal what is newly known of an image's file and caption, and count what was cut."""
        image_id, arrays = sample.source.image_id, sample.sealed.keys()
        old = known = sample.facts or Facts(image_id)
        if any(component.source == "image" for component in arrays):
            known = self.sealer.seen(sample, known, arrays)
            if not sample.failure:
                self.summary.quality.add(known)
        if sample.is_left_out:
            digest = self.settings.digest(sample.texts)
            known = replace(known, tokens_lost=sample.tokens_lost, image=sample.image)
            known = replace(known, left_out=digest)
        elif sample.tokens_lost and not sample.failure:
            known = with_tokens(sample, known)
            for name, lost in sample.tokens_lost.items():
                self.summary.truncated.setdefault(name, Truncated()).add(image_id, lost)
        wanted = sample.wants_text or CAPTION not in self.store.recipe.texts
        if (
            sample.caption_given is not None
            and wanted
            and (not sample.failure or sample.is_left_out)
        ):
            known = replace(known, caption_given=sample.caption_given)
        if known != (Facts(image_id) if self.generation else old):
            self.facts.append(to_builtins(known))

    def _journal(self, records: list[Record]) -> None:
        for record in records:
            self.records.append(record)
        self.records.commit()

    def _fail(self, sample: Sample, reason: str, detail: str) -> None:
        """Count a sample that failed, and say which arrays in use a recompute keeps."""
        if sample.is_left_out:
            self.outcomes.leave_out(sample.source, reason, detail)
            return
        generation, image_id = self.generation, sample.source.image_id
        if generation is not None:
            there = (c for c in sample.make if c in generation.kept)
            kept = [c.name for c in there if generation.used.array(c, image_id).exists()]
            detail += f"; kept as it was: {', '.join(kept)}" if kept else ""
        self.outcomes.fail_at_work(sample.source, reason, detail, [c.name for c in sample.make])
