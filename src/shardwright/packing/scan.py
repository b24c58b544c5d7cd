"""The first step of packing: read the metadata, list the arrays, and find the ready records.

Of each record only its id, its bucket and the place of its line are kept, in columns. What a worker
needs of some samples is an excerpt of these.
"""

from __future__ import annotations

import os
import posixpath
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import filterfalse, pairwise, repeat
from pathlib import Path
from typing import BinaryIO

from shardwright import regular
from shardwright.errors import InputMissingError, SourceChangedError
from shardwright.interrupts import check
from shardwright.packing.summary import Counts
from shardwright.progress import Progress, quantity
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.storage.files import explained
from shardwright.store import facts, records
from shardwright.store.facts import Facts
from shardwright.store.faults import Rules
from shardwright.store.records import BadRecordError, Line, Record, is_image_id
from shardwright.store.store import Store

WARNINGS_SHOWN = 5
_UNMET = -1  # for its place: no record of these arrays has come yet
_UNKNOWN = -1  # for its place: there are no facts
_BATCH = 1000  # samples that a worker reads at a time
_ARRAY = ".npy"  # ids are compared as names of arrays, because listing a folder gives these


class Ids:
    """Ids one after another in memory: 40 bytes for 32 characters, where a list takes 90."""

    def __init__(self) -> None:
        self._text, self._ends = bytearray(), array("Q", [0])

    def append(self, image_id: str) -> None:
        """Add an id."""
        self._text += image_id.encode()
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, sample: int) -> str:
        return self._text[self._ends[sample] : self._ends[sample + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self._ends):
            yield self._text[start:end].decode()


@dataclass
class Scan:
    """The ready samples of a store, in columns; a sample is its position in them."""

    store: Store
    jsonl_state: tuple[int, int]  # its size and time, to notice a change before we copy it
    skipped: Counts = field(default_factory=Counts)
    ids: Ids = field(default_factory=Ids)
    buckets: list[str] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    dropped: set[int] = field(default_factory=set)  # samples that are not ready after all

    def add(self, image_id: str, bucket: str, line: Line) -> None:
        """Append a sample."""
        assert line.data is not None
        self.ids.append(image_id)
        self.buckets.append(sys.intern(bucket))
        self.offsets.append(line.offset)
        self.lengths.append(len(line.data))

    def drop(self, sample: int, reason: str) -> None:
        """Move a sample from the ready to the skipped."""
        self.dropped.add(sample)
        self.skipped.add(reason, self.ids[sample])

    def at(self, offset: int) -> int | None:
        """Find the ready sample whose line begins at an offset."""
        sample = bisect_left(self.offsets, offset)
        there = sample < len(self.offsets) and self.offsets[sample] == offset
        return sample if there and sample not in self.dropped else None

    def ready(self) -> Sequence[int]:
        """Give the ready samples in the order of the JSONL."""
        samples = range(len(self.ids))
        if not self.dropped:
            return samples
        return array("I", filterfalse(self.dropped.__contains__, samples))

    @property
    def total_records(self) -> int:
        """Count all records: each is ready or skipped."""
        return self.ready_records + self.skipped.total

    @property
    def ready_records(self) -> int:
        """Count the records that are ready."""
        return len(self.ids) - len(self.dropped)

    def fact_places(self, samples: Iterable[int]) -> array[int]:
        """Find where the facts of some samples are, by sample."""
        found = array("q", [_UNKNOWN]) * len(self.ids)
        by_id = {self.ids[sample]: sample for sample in samples}
        for offset, known in facts.read(self.store) if by_id else ():
            if (sample := by_id.get(known.image_id)) is not None:
                found[sample] = offset
        return found

    def excerpt(self, samples: Sequence[int], fact_places: array[int] | None = None) -> Excerpt:
        """Give what a worker needs to read some samples, and their facts if it asks for them."""
        return Excerpt(
            self.store,
            self.jsonl_state,
            array("I", samples),
            [self.ids[sample] for sample in samples],
            [self.buckets[sample] for sample in samples],
            array("Q", [self.offsets[sample] for sample in samples]),
            array("I", [self.lengths[sample] for sample in samples]),
            None if fact_places is None else array("q", [fact_places[s] for s in samples]),
        )

    def batches(
        self, samples: Sequence[int], fact_places: array[int] | None = None
    ) -> Iterator[Excerpt]:
        """Give excerpts of some samples, each for one task of a worker."""
        for first in range(0, len(samples), _BATCH):
            yield self.excerpt(samples[first : first + _BATCH], fact_places)

    def counts(self) -> str:
        """Write the counts, for a log."""
        return (
            f"total_records={self.total_records} ready_records={self.ready_records} "
            f"skipped_incomplete={self.skipped.total}"
        )


@dataclass(frozen=True)
class Excerpt:
    """Some samples of a scan, for a worker to read."""

    store: Store
    jsonl_state: tuple[int, int]
    samples: array[int]  # their positions in the scan
    ids: list[str]
    buckets: list[str]
    offsets: array[int]
    lengths: array[int]
    fact_places: array[int] | None  # None: not asked for

    def folders(self, stack: ExitStack) -> list[tuple[Component, int]]:
        """Open the folder of each component."""
        rows = self.store.recipe.components
        return [(row, _open(self.store.arrays(row), os.O_DIRECTORY, stack)) for row in rows]

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Read the id and the line of each sample; raise if the file has changed since the scan."""
        path = self.store.jsonl
        with ExitStack() as stack:
            fd = _open(path, os.O_RDONLY, stack)
            if hasattr(os, "posix_fadvise"):  # so that a disk reads many at a time; macOS has none
                for offset, length in zip(self.offsets, self.lengths, strict=True):
                    os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
            for image_id, offset, length in zip(self.ids, self.offsets, self.lengths, strict=True):
                check()
                yield image_id, os.pread(fd, length, offset)
            if files.state(fd) != self.jsonl_state:  # asked once: before that, nothing is published
                raise changed(path, "written to")

    def known(self) -> Generator[Facts | None, None, None]:
        """Read the facts of each sample; None where they are unknown."""
        with ExitStack() as stack:
            file: BinaryIO | None = None
            places = self.fact_places or repeat(_UNKNOWN)
            for image_id, offset in zip(self.ids, places, strict=False):
                if offset == _UNKNOWN:
                    yield None
                    continue
                if file is None:
                    fd = _open(facts.path_of(self.store), os.O_RDONLY, stack)
                    file = stack.enter_context(open(fd, "rb", closefd=False))
                yield facts_at(self.store, file, image_id, offset)


def facts_at(store: Store, file: BinaryIO, image_id: str, offset: int) -> Facts:
    """Read the facts of an image at a place; raise if they are not there any more."""
    with suppress(*records.NOT_JSON):
        known = facts.read_line(file, offset)
        if known.image_id == image_id:
            return known
    raise changed(facts.path_of(store), "written to")


def _open(path: Path, flags: int, stack: ExitStack) -> int:
    try:
        if flags & os.O_DIRECTORY:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            fd = regular.descriptor(path)
    except OSError as error:  # although the scan could
        raise changed(path, str(error.strerror)) from error
    stack.callback(os.close, fd)
    return fd


def changed(path: Path, how: str) -> SourceChangedError:
    """Say that an input changed since it was scanned."""
    return SourceChangedError(f"changed while it was read ({how})", path=path, fix="run again")


def scan(store: Store, progress: Progress, progress_every: int) -> Scan:
    """Find the samples whose record is complete and whose array files are all there."""
    # Where the latest record of each id is, by the name that its arrays have.
    places = dict.fromkeys(_complete(store), _UNMET)
    jsonl, rules = store.jsonl, Rules(store.recipe)
    with explained(jsonl), regular.opened(jsonl) as again:
        found = Scan(store, files.state(again.fileno()))
        doubts = _Doubts(found, places, again, rules, progress)
        walked = records.walk(jsonl, rules.essentials, progress=progress, phase="scan")
        for line, ready in walked:
            if ready is not None and places.get(name := ready.image_id + _ARRAY) == _UNMET:
                places[name] = line.offset
                found.add(ready.image_id, ready.aspect_bucket, line)
            elif not doubts.settle(line):
                continue
            if len(found.ids) % progress_every == 0:
                progress.note(found.counts())
    if doubts.malformed > WARNINGS_SHOWN:
        more = quantity(doubts.malformed - WARNINGS_SHOWN, "more malformed lines")
        progress.warn(f"{jsonl}: {more} skipped")
    progress.note(found.counts())
    return found


def _complete(store: Store) -> Collection[str]:
    """List each component's folder once, and give the names that are in all of them."""
    complete: Collection[str] | None = None
    for component in store.recipe.components:
        folder, end = store.arrays(component), component.extension
        with explained(folder):
            names = os.listdir(folder) if folder.is_dir() else []
        if end != _ARRAY:
            names = [name.removesuffix(end) + _ARRAY for name in names if name.endswith(end)]
        if complete is None:
            complete = names
        elif names != complete:  # mostly they are the same, and in the same order too
            complete = set(names).intersection(complete)
    return complete or ()


class _Doubts:
    """Decides about records that are not clearly ready: most stores have few."""

    def __init__(
        self, found: Scan, places: dict[str, int], file: BinaryIO, rules: Rules, progress: Progress
    ) -> None:
        self.found, self.places, self.file = found, places, file
        self.rules, self.progress = rules, progress
        self.malformed = 0
        self.conflicts: set[str] = set()  # ids that stand for more than one image

    def settle(self, line: Line) -> bool:
        """Add the sample of a line, or count why it is skipped; return whether it was added."""
        found, where = self.found, f"line {line.number}"
        try:
            record = records.parse(line.data)
        except BadRecordError as error:
            found.skipped.add(error.reason, where)
            self.malformed += 1
            if self.malformed <= WARNINGS_SHOWN:
                what = error.reason.replace("_", " ")
                self.progress.warn(f"{found.store.jsonl}, {where}: {what}; skipped")
            return False
        image_id, reason = record.get("image_id"), self.rules.problem(record)
        if not is_image_id(image_id):
            assert reason is not None
            found.skipped.add(reason, where)
            return False
        name = image_id + _ARRAY
        earlier = self.places.get(name)
        self.places[name] = line.offset
        if earlier != _UNMET:
            reason = reason or missing_array(found.store, image_id)
            if earlier is not None:
                reason = self._repeated(earlier, record) or reason
        if reason is not None:
            found.skipped.add(reason, image_id)
            return False
        found.add(image_id, record["aspect_bucket"], line)
        return True

    def _repeated(self, earlier: int, record: Record) -> str | None:
        """Decide about two records of one image_id: the later wins, if they are of one image."""
        image_id = record["image_id"]
        if self._image_at(earlier) != _image(record.get("image_path")):
            self.conflicts.add(image_id)
        reason = "duplicate_id" if image_id in self.conflicts else None
        sample = self.found.at(earlier)
        if sample is not None:
            self.found.drop(sample, reason or "superseded")
        return reason

    def _image_at(self, offset: int) -> object:
        self.file.seek(offset)
        try:
            return _image(records.names(self.file.readline()).image_path)
        except BadRecordError:
            raise changed(self.found.store.jsonl, "written to") from None


def missing_array(store: Store, image_id: str) -> str | None:
    """Say which array of an image is not there."""
    for component in store.recipe.components:
        if not os.path.lexists(store.array(component, image_id)):
            return f"{component.name}_missing"
    return None


def _image(image_path: object) -> object:
    return posixpath.normpath(image_path) if isinstance(image_path, str) else image_path


def require_inputs(store: Store) -> None:
    """Raise if a part of the store is missing."""
    store.require_merged()
    if not store.jsonl.is_file():
        fix = "give the Stage 2 metadata with --jsonl, or its folder with --derived-dir"
        raise InputMissingError(files.absence(store.jsonl), path=store.jsonl, fix=fix)
    for component in store.recipe.components:
        folder = store.arrays(component)
        if not folder.is_dir():
            fix = f"give the store that holds the {component.name} arrays with --derived-dir"
            raise InputMissingError("no such folder", path=folder, fix=fix)
