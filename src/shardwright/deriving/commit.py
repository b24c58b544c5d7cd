"""The last stage: check what the encoders made, publish the arrays, and journal the records."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from shardwright.deriving import images
from shardwright.deriving.batches import require_shape
from shardwright.deriving.generations import Generation
from shardwright.deriving.images import Size
from shardwright.deriving.outcomes import Outcomes
from shardwright.deriving.prepare import Array, Sample
from shardwright.deriving.summary import ComponentSummary
from shardwright.progress import Progress
from shardwright.recipe import FORMAT_VERSION, Component
from shardwright.store.arrays import write_arrays
from shardwright.store.facts import Facts, Truncated
from shardwright.store.journal import Journal
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import CROP, Record, ordered
from shardwright.store.store import Store


class Committer:
    """Brings groups of samples into the store and the outcomes."""

    def __init__(
        self,
        *,
        store: Store,
        journal: Journal,
        facts: Journal,
        fits: Mapping[Component, str],
        generation: Generation | None,
        outcomes: Outcomes,
        summaries: Mapping[Component, ComponentSummary],
        truncated: dict[str, Truncated],
        progress: Progress,
    ) -> None:
        self.store = store
        self.journal = journal
        self.facts = facts
        self.fits = fits  # of the components that follow the picture, as far as it is known
        self.generation = generation  # whose the store is, where components are recomputed
        self.outcomes = outcomes
        self.summaries = summaries
        self.truncated = truncated
        self.progress = progress

    def commit(self, samples: list[Sample]) -> None:
        """Make a group durable, and count each of its samples."""
        group = []
        for sample in samples:
            arrays = self._checked(sample)
            self._note(sample, arrays)
            for component, array in arrays.items():
                group.append((self.store.array(component, sample.task.source.image_id), array))
                self.summaries[component].made += 1
                self.summaries[component].bytes_written += HEADER_BYTES + array.nbytes
        records = [None if sample.failure else self._record(sample) for sample in samples]
        # An array is taken to be made of what the record says, so a record that is there changes
        # first; a new one is the sign that its arrays are there, so it comes last. In a generation
        # all are new.
        changed: list[Record] = []
        new: list[Record] = []
        for sample, record in zip(samples, records, strict=True):
            if self.generation is not None and not sample.failure:
                new.append(record or {"image_id": sample.task.source.image_id})
            elif record is not None and record != sample.task.record:
                (new if sample.task.record is None else changed).append(record)
        # The facts first: what is missing then is made again, with facts of its own.
        self.facts.commit()
        self._journal(changed)
        write_arrays(group)
        self._journal(new)
        self.progress.advance(len(samples))
        for sample, record in zip(samples, records, strict=True):
            if sample.failure:
                reason, detail = sample.failure
                names = [component.name for component in sample.task.make]
                if kept := self._kept(sample):
                    detail += f"; kept as it was: {', '.join(kept)}"
                self.outcomes.fail_at_work(sample.task.source, reason, detail, names)
            else:
                self.outcomes.succeed(bool(sample.task.make) or record != sample.task.record)
                if sample.unapplied:
                    self.outcomes.leave_profile(sample.task.source, sample.unapplied)

    def _note(self, sample: Sample, arrays: Collection[Component]) -> None:
        """Journal what is newly known of an image's file and caption, and count what was cut."""
        image_id = sample.task.source.image_id
        old = known = sample.task.facts or Facts(image_id)
        if any(component.source == "image" for component in arrays):
            known = replace(known, image=sample.image, outdated=_outdated(sample, arrays))
        if sample.tokens_lost and not sample.failure:
            known = replace(known, tokens_lost=sample.tokens_lost, cut_at=sample.cut_at)
            for name, lost in sample.tokens_lost.items():
                self.truncated.setdefault(name, Truncated()).add(image_id, lost)
        if known != (Facts(image_id) if self.generation else old):
            self.facts.append(to_builtins(known))

    def _journal(self, records: list[Record]) -> None:
        for record in records:
            self.journal.append(record)
        self.journal.commit()

    def _checked(self, sample: Sample) -> dict[Component, Array]:
        """Give the arrays of a sample in their components' dtypes; values must be finite there.

        Of a sample that failed, what was missing and is sound now is kept and need not be made
        again; but not in a generation, nor what is made of a caption that no record has.
        """
        sound = {}
        for component, array in sample.arrays.items():
            require_shape(component, array, self._shape(sample, component))
            with np.errstate(over="ignore"):
                cast = array.astype(component.dtype)
            if np.isfinite(cast).all():
                sound[component] = cast
            else:
                what = "too large a value" if np.isfinite(array).all() else "NaN or infinity"
                detail = f"{component.name}: {what} for {component.dtype}"
                sample.failure = sample.failure or ("not_finite", detail)
        if sample.failure:
            kept = self.generation is None
            return {c: array for c, array in sound.items() if kept and c.source == "image"}
        return sound

    def _kept(self, sample: Sample) -> list[str]:
        """Name the components of a sample that failed to be recomputed and are as they were."""
        if self.generation is None:
            return []
        kept, image_id = self.generation.kept, sample.task.source.image_id
        there = (c for c in sample.task.make if self.generation.used.array(c, image_id).exists())
        return [component.name for component in there if component in kept]

    def _shape(self, sample: Sample, component: Component) -> tuple[int, ...]:
        size = _known(sample.size)
        if component.follows_picture:
            size = images.frame(self.fits[component], size, component, self.store.recipe).size
        return component.shape_for(*size)

    def _record(self, sample: Sample) -> Record | None:
        """Write the record of a sample; None if it cannot be whole yet, for want of the mask."""
        task, size = sample.task, _known(sample.size)
        record: Record = {"image_id": task.source.image_id, "image_path": task.source.path}
        record |= task.record or {}
        record["height"], record["width"] = size.height, size.width
        record["aspect_bucket"] = str(self.store.recipe.bucket_for(*size))
        record["format_version"] = FORMAT_VERSION
        if sample.caption is not None:
            record["caption"] = sample.caption
            record |= sample.masks
        for component, fit in self.fits.items():
            if component in task.make or task.record is None:
                record.pop(CROP, None)
                if fit == "bucket":
                    record[CROP] = list(images.frame(fit, size, component, self.store.recipe).box)
        if not all(field in record for field in self.store.recipe.record_fields):
            return None
        return ordered(record, self.store.recipe)


def _outdated(sample: Sample, arrays: Collection[Component]) -> list[str]:
    """Name the arrays of an image that show an earlier file than those that are made now."""
    before = sample.task.facts
    if before is None or before.image is None or sample.image is None:
        return []
    made = [component.name for component in arrays]
    same = before.image.xxh3 == sample.image.xxh3
    return [name for name in (before.outdated if same else sample.task.kept) if name not in made]


def _known(size: Size | None) -> Size:
    assert size is not None  # a sample without one has failed
    return size
