"""Compares samples with their images: some are recomputed as the manifest says they were made.

Samples are chosen evenly over all shards. What is outdated, because an image has changed since, and
what cannot be compared, because there is no image, is no damage.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from shardwright.deriving.captions import CAPTION
from shardwright.deriving.prepare import Sample
from shardwright.deriving.results import Results
from shardwright.deriving.sources import Source
from shardwright.errors import ShardwrightError, StorageError, UsageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.packing.outdated import newer
from shardwright.progress import Progress, quantity
from shardwright.recipes import JSON_SUFFIX, RecipeFile
from shardwright.shards.format import index
from shardwright.shards.format.index import ShardIndex
from shardwright.shards.format.manifest import ShardEntry
from shardwright.shards.format.record_members import mask_member
from shardwright.shards.format.tarread import Fault
from shardwright.storage.extents import Extent, Part
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import records
from shardwright.store.findings import IMAGE_DIFFERS, NOT_COMPARED, OUTDATED, Finding, VerifyReport
from shardwright.store.records import CROP, BadRecordError, Record
from shardwright.text import shown
from shardwright.verifying import image_places
from shardwright.verifying.folder import Folder
from shardwright.verifying.image_places import Wanted, path_of
from shardwright.verifying.recomputation import Made, Remaker, difference, made_by

_RESTORE = "restore it from a copy, or write it again with --overwrite"


class _Shard(NamedTuple):
    """A shard of the folder."""

    name: str  # below the folder that is verified
    folder: Location  # with its manifest
    entry: ShardEntry
    made: Made
    is_build: bool


class _Pick(NamedTuple):
    """A sample to recompute."""

    shard: _Shard
    table: ShardIndex
    number: int  # in the shard
    record: Record
    place: Extent  # of its image; blank if that is not known

    @property
    def image_id(self) -> str:
        return self.table.head.ids[self.number]

    @property
    def wanted(self) -> Wanted:
        """Give its image, as it is to be found: by as much of its path as tells it from others."""
        by_path = self.shard.made.recipe.ids == "path"
        return Wanted(path_of(self.record), self.image_id.count("%2F") + 1 if by_path else 1)

    def member(self, suffix: str) -> bytes | None:
        """Read a member; None if it is not as it was written. The caller handles OSErrors."""
        column = self.table.head.members.index(suffix)
        offset, size, xxh3 = self.table.member(self.number, column)
        with place_at(self.shard.folder).open(self.shard.entry.path) as file:
            data = file.pread(offset, size) if offset + size <= file.size else b""
        return data if xxhash.xxh3_64_intdigest(data) == xxh3 else None


class Recomputing:
    """The samples that are to be recomputed, and the encoders for it, before anything is checked.

    ``folders`` are the shard folder, or the parts of a split. What differs is added to a report.
    """

    def __init__(
        self,
        report: VerifyReport,
        folders: Iterable[Folder],
        images: Path,
        samples: int,
        file: RecipeFile,
        device: str,
        progress: Progress,
    ) -> None:
        image_places.require_images(images)
        self._report, self._images = report, images
        self._device, self._progress = device, progress
        self._failed: dict[str, list[str]] = {}  # by reason: images
        shards = [shard for folder in folders for shard in _shards(folder)]
        self._picks = self._found(self._chosen(shards, samples))
        self._remakers: list[tuple[Made, Remaker]] = []
        shared: dict[Any, Any] = {}
        for pick in self._picks:
            made = pick.shard.made
            if made.entries and all(made != known for known, _ in self._remakers):
                remaker = Remaker(made, file, device, shared, pick.shard.folder)
                self._remakers.append((made, remaker))

    def compare(self) -> None:
        """Recompute the samples, and report what differs."""
        compared = 0
        self._progress.phase("recompute", len(self._picks), "samples")
        for made, remaker in self._remakers:
            picks = {pick.image_id: pick for pick in self._picks if pick.shard.made == made}
            for sample in _remade(remaker, picks.values(), self._device, self._progress):
                check()
                compared += self._compare(sample, picks[sample.source.image_id], remaker)
                self._progress.advance(1)
        self._report.recomputed = compared
        self._sum_up()
        self._progress.note(f"{quantity(compared, 'samples')} compared")

    def _chosen(self, shards: Sequence[_Shard], count: int) -> Iterator[_Pick]:
        """Choose samples evenly over all shards."""
        ends = list(accumulate(shard.entry.samples for shard in shards))
        total = ends[-1] if ends else 0
        count = min(count, total)
        places = ((2 * number + 1) * total // (2 * count) for number in range(count))
        for number, inside in groupby(places, key=partial(bisect_right, ends)):
            first = ends[number] - shards[number].entry.samples
            yield from self._read(shards[number], [place - first for place in inside])

    def _read(self, shard: _Shard, numbers: Iterable[int]) -> Iterator[_Pick]:
        """Read the records of some samples of a shard; one that is damaged is a finding."""
        # That the shard is missing, or its index is damaged, is reported already.
        try:
            table = index.load_listed(shard.folder, shard.entry)
        except ShardwrightError:
            return
        if table.head.members != shard.made.recipe.suffixes:
            return
        for number in numbers:
            pick = _Pick(shard, table, number, {}, "")
            try:
                yield pick._replace(record=records.parse(pick.member(JSON_SUFFIX) or b""))
            except BadRecordError:
                self._add_damage(pick, JSON_SUFFIX)
            except StorageError:  # of the network, not of this shard
                raise
            except OSError:
                return

    def _found(self, picks: Iterable[_Pick]) -> list[_Pick]:
        """Find the images of samples; those that are not there are counted."""
        chosen, found = list(picks), list[_Pick]()
        wanted = [pick.wanted for pick in chosen]
        named = [image for image in wanted if image.path]
        there = image_places.find(self._images, named, self._progress)
        for pick, image in zip(chosen, wanted, strict=True):
            if image.path in there:
                found.append(pick._replace(place=there[image.path]))
            else:
                self._leave_out(pick.shard, "", image.path or pick.image_id)
        return found

    def _add(self, pick: _Pick, fault: Fault, fix: str) -> None:
        named = fault._replace(sample=pick.image_id)
        self._report.findings.append(named.finding(pick.shard.name, fix))

    def _add_damage(self, pick: _Pick, suffix: str) -> None:
        if not self._report.read_data:  # else it is reported already
            self._add(pick, Fault("data_differs", "its data is damaged", suffix), _RESTORE)

    def _leave_out(self, shard: _Shard, reason: str, image: str) -> None:
        self._failed.setdefault(reason, []).append(image)
        self._report.not_compared += len(shard.made.entries)

    def _compare(self, sample: Sample, pick: _Pick, remaker: Remaker) -> bool:
        """Compare one sample with its shard, and return whether that was possible."""
        shard, faults = pick.shard, list[Fault]()
        if sample.failure is not None:
            reason, detail = sample.failure
            self._leave_out(shard, reason, f"{pick.place} ({detail})")
            return False
        try:
            written = (shard.folder / shard.entry.path).stat()
            image = os.stat(pick.place.path if isinstance(pick.place, Part) else pick.place)
            for suffix, what in _differences(sample, pick, remaker):
                if what is not None:
                    faults.append(Fault(IMAGE_DIFFERS, what, suffix))
                else:
                    self._add_damage(pick, suffix)
        except StorageError:
            raise
        except OSError as error:
            self._leave_out(shard, "unreadable", f"{pick.place} ({error.strerror})")
            return False
        if faults and _is_changed(sample, pick, newer(image, written)):
            self._report.outdated += 1
            self._add(pick, *_outdated(pick, faults))
            return True
        again = "build" if shard.is_build else "derive with --recompute, and pack"
        for fault in faults:
            what = f"{fault.what}, compared with {pick.place}"
            fix = f"if the image is right, {again} again with --overwrite"
            self._add(pick, fault._replace(what=what), fix)
        return True

    def _sum_up(self) -> None:
        """Report once what could not be compared."""
        found: dict[str, str] = {}  # the fix of each
        for reason, those in self._failed.items():
            what, fix = f"has no image of {quantity(len(those), 'samples')}", image_places.MADE_FROM
            if reason:
                what = f"{quantity(len(those), 'images')} cannot be used: {reason}"
                fix = "restore the images"
            found[f"{what}, for example {those[0]}"] = fix
        unknown = Counter(why for pick in self._picks for why in pick.shard.made.unknown.items())
        for (name, why), count in unknown.items():
            self._report.not_compared += count
            what = f"{name} of {quantity(count, 'samples')} was not recomputed: {why}"
            found[what] = (
                "if it was packed from a store, compare it with that: --against DERIVED_DIR"
            )
        images = shown(str(self._images))
        for what, fix in found.items():
            one = Finding(NOT_COMPARED, images, None, what, fix, damage=False)
            self._report.findings.append(one)


def _shards(folder: Folder) -> Iterator[_Shard]:
    """List the shards of a folder, by path; none if its manifest cannot be used."""
    done = folder.packed
    if done is None:
        damaged = any(one.kind == "manifest_damaged" for one in folder.findings)
        if not (damaged or folder.unfinished):
            what = "has no manifest, so it is not known how its samples were made"
            fix = f"copy {STATE_FOLDER} along with the shards, or leave out --against"
            raise UsageError(what, path=folder.path, fix=fix)
        return
    runs = [(made_by(done, run), run.is_build) for run in done.runs]
    for entry in done.shards:
        name = f"{folder.part}/{entry.path}" if folder.part else entry.path
        yield _Shard(name, folder.path, entry, *runs[entry.run])


def _is_changed(sample: Sample, pick: _Pick, newer: bool) -> bool:
    """Whether a sample was made from another image than the one that is there now.

    Where the shards do not know what that was, the size and the time have to tell.
    """
    known = image_places.recorded_hash(pick.shard.folder, pick.shard.entry, pick.number)
    if known is not None and sample.image is not None:
        return sample.image.xxh3 != known
    size = (pick.record.get("width"), pick.record.get("height"))
    return newer or size != sample.size


def _outdated(pick: _Pick, faults: Iterable[Fault]) -> tuple[Fault, str]:
    """Report that an image has changed, or is another one; give also the fix."""
    listed = ", ".join(f"{fault.member} {fault.what}" for fault in faults)
    what, fix = f"{pick.place} has changed since ({listed})", "build again with --overwrite"
    if not pick.shard.is_build:
        fix = "derive with --update, then pack with --sync"
    if os.path.abspath(str(pick.place)) != os.path.abspath(path_of(pick.record)):
        what = f"{pick.place} is not the image that this sample was made from ({listed})"
        fix += f"; if these are other images, {image_places.MADE_FROM}"
    return Fault(OUTDATED, what, damage=False), fix


def _remade(
    remaker: Remaker, picks: Collection[_Pick], device: str, progress: Progress
) -> Iterator[Sample]:
    """Recompute samples, with the texts of their records."""
    make, names = remaker.components, dict.fromkeys((CAPTION, *remaker.recipe.texts))
    wants_text = any(component.source == "caption" for component in make)

    def samples() -> Iterator[Sample]:
        for pick in picks:
            part = pick.place if isinstance(pick.place, Part) else None
            source = Source(pick.image_id, str(pick.place), has_sidecar=False, part=part)
            texts = {name: pick.record.get(name) for name in names}
            texts = {n: text if isinstance(text, str) else None for n, text in texts.items()}
            yield Sample(source, make, None, None, [], wants_text, texts, {})

    maker = remaker.maker(device, progress)
    for group in maker.run(samples(), _Sink(remaker.results), len(picks), len(picks)):
        for sample in group:
            yield sample
            sample.made = {}


class _Sink:
    """Where recomputed samples end."""

    def __init__(self, results: Results) -> None:
        self.check = results.check

    def commit(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        return samples


def _differences(sample: Sample, pick: _Pick, remaker: Remaker) -> Iterator[tuple[str, str | None]]:
    """Find the members that differ, and in what; None if a member is not as it was written."""
    for name, value in _facts(sample, remaker).items():
        if (before := pick.record.get(name)) != value:
            yield JSON_SUFFIX, f"differs: {name} is {before}, not {value}"
    for component, made in (sample.made or {}).items():
        for suffix in component.members:
            data = pick.member(suffix)
            if data is None:
                yield suffix, None
            elif suffix == component.suffix:
                settings = remaker.settings[component.name]
                if what := difference(component, data, made, settings):
                    yield suffix, what
            elif component.mask and data != mask_member(sample.masks, component.mask):
                yield suffix, "differs"


def _facts(sample: Sample, remaker: Remaker) -> Record:
    """Give what a record says of a picture."""
    assert sample.size is not None  # a sample without one has failed
    width, height = sample.size
    facts: Record = {"width": width, "height": height}
    if remaker.following:
        facts["aspect_bucket"] = str(remaker.recipe.bucket_for(width, height))
    for view in remaker.following.values():
        if view.fit == "bucket":
            facts[CROP] = list(view.frame(sample.size).box)
    return facts
