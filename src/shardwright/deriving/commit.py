"""The last stage: arrays are sealed where they were made, then published with their records.

Sealed means: on the disk, under a temporary name. A worker may seal them in another process. Only
the process that holds the lock of the store publishes them and writes records, in the order of the
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from shardwright.deriving.captions import CAPTION
from shardwright.deriving.outcomes import Outcomes
from shardwright.deriving.passes import Array
from shardwright.deriving.prepare import Sample, file_bytes
from shardwright.deriving.results import Results, with_tokens
from shardwright.deriving.settings import InForce
from shardwright.deriving.summary import DeriveSummary
from shardwright.progress import Progress
from shardwright.store.arrays import publish_arrays, remove_sealed, seal_arrays
from shardwright.store.facts import Facts, Truncated
from shardwright.store.journal import Journal
from shardwright.store.npy import HEADER_BYTES
from shardwright.store.records import Record, own_fields
from shardwright.store.store import Store


@dataclass(frozen=True)
class Sealer:
    """Checks samples, and writes their arrays under temporary names."""

    results: Results
    store: Store  # that they will belong to

    def check(self, sample: Sample) -> None:
        """Check what was made."""
        self.results.check(sample)

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
        settings: InForce,
        records: Journal,
        facts: Journal,
        outcomes: Outcomes,
        summary: DeriveSummary,
        progress: Progress,
    ) -> None:
        self.settings, self.generation = settings, settings.generation
        self.store = self.generation.store if self.generation else settings.store
        keeps = self.generation is None
        self.results = Results(self.store.recipe, settings.following(), keeps)
        self.sealer = Sealer(self.results, self.store)
        self.records, self.facts = records, facts
        self.outcomes, self.summary, self.progress = outcomes, summary, progress

    def check(self, sample: Sample) -> None:
        """Check what was made in this process."""
        self.results.check(sample)

    def commit(self, samples: Sequence[Sample]) -> None:
        """Seal and publish a group that was made in this process."""
        self.sealer.seal(samples)
        self.publish(samples)

    def publish(self, samples: Sequence[Sample]) -> None:
        """Make a group of sealed samples durable, and count each of them."""
        paths = self.sealed(samples)
        try:
            records = [
                None if sample.failure else self.results.record(sample) for sample in samples
            ]
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

    def sealed(self, samples: Sequence[Sample]) -> list[Path]:
        """Give the paths of the arrays that samples were sealed with."""
        return [self.store.array(c, s.source.image_id) for s in samples for c in s.sealed]

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
            known = self.results.seen(sample, known, arrays)
            if not sample.failure:
                self.summary.quality.add(known)
        if sample.is_left_out:
            digest = self.settings.digest(sample.texts)
            known = replace(known, tokens_lost=sample.tokens_lost, left_out=digest)
            known = replace(known, image=sample.image)
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
