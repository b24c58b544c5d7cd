"""Checks shards: one folder, or each part of a split folder and that nothing mixes them.

What was found becomes one report, whose fixes say what must be given to lose nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from shardwright.engine import Engine
from shardwright.packing.splits import recorded
from shardwright.progress import Progress, quantity
from shardwright.shards.format.again import overwriting, to_another_url
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.findings import (
    ALIKE,
    FAIL,
    IDENTICAL,
    NEEDS_INDEX,
    NOT_COMPARED,
    OUTDATED,
    PASS,
    Finding,
    VerifyReport,
)
from shardwright.store.store import Store
from shardwright.verifying.against_store import PACK_AGAIN, Source, left_out, read_source
from shardwright.verifying.folder import TAR, Folder, check_folder
from shardwright.verifying.loader_rules import check_loaders, findings_of
from shardwright.verifying.shard import Seen

_AGAIN = "pack all of it again with --overwrite"
# Kinds of findings whose file is not below the folder.
_ABSOLUTE = (NOT_COMPARED, "left_out", "empty_left_out", "other_recipe", "no_manifest")
_VERDICTS = (PASS, NEEDS_INDEX, FAIL)  # the worst last
# Without flags behind it; "the same pack with --resume" has them all.
_WAY = re.compile(r"(?:with|and|use) --overwrite(?![\w-]| --)")


def verify_shards(
    report: VerifyReport,
    target: Location,
    folders: Sequence[Folder],
    store: Path | None,
    engine: Engine,
    progress: Progress,
) -> None:
    """Check a shard folder, or its parts if it is split.

    ``store`` also compares it with a store, which reads all data.
    """
    source = read_source(Store.at(store), progress) if store is not None else None
    report.read_data = report.read_data or source is not None
    seen = dict[str, list[Seen]]()
    for folder in folders:
        seen[folder.part] = check_folder(folder, source, report.read_data, engine, progress)
        report.findings += _of_part(folder, folder.findings)
    report.findings += _repeated_keys(seen)
    shards = [shard for each in seen.values() for shard in each]
    report.checked = {"shards": len(shards), "samples": sum(len(shard.keys) for shard in shards)}
    report.bytes = sum(shard.bytes for shard in shards)
    report.outdated += sum(shard.counts[OUTDATED] for shard in shards)
    report.not_compared += sum(shard.counts[NOT_COMPARED] for shard in shards)
    if folders[0].part:
        report.findings += _missing(folders)
        report.findings += _outside(target, seen)
        report.findings += _not_begun(target, folders, source) if source else ()
        if not report.damaged:
            _add_copies(report, target, progress)


def add_loaders(report: VerifyReport, folders: Iterable[Folder], progress: Progress) -> None:
    """Add which loaders can read the folders; the worst verdict counts."""
    report.loaders = {}
    for folder in folders:
        checks = check_loaders(folder.path, progress)
        report.findings += _of_part(folder, findings_of(checks, folder.path))
        for check in checks:
            known = report.loaders.get(check.loader, PASS)
            report.loaders[check.loader] = max(known, check.verdict, key=_VERDICTS.index)


def complete_fixes(report: VerifyReport, target: Location, store: Path | None) -> None:
    """Complete the fixes that write all again, with the flags of the last run that lose nothing.

    At a URL nothing is replaced: all goes to another one, which keeps nothing. ``store`` is the one
    that the shards were compared with, if any.
    """
    if not any(_WAY.search(one.fix) for one in report.findings):
        return
    known = recorded(target)
    last = msgspec.structs.replace(known[0], settings=known[1]) if known else None
    folder = target if last and last.is_build else store  # that its lists are named from

    def complete(way: re.Match[str]) -> str:
        can_replace = place_at(target).can_replace
        return overwriting(way[0], last, folder) if can_replace else to_another_url(last, folder)

    report.findings = [replace(one, fix=_WAY.sub(complete, one.fix)) for one in report.findings]


def _of_part(folder: Folder, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Name files from the folder that is verified."""
    for one in findings:
        inside = folder.part and one.kind not in _ABSOLUTE
        yield replace(one, file=f"{folder.part}/{one.file}") if inside else one


def _repeated_keys(seen: Mapping[str, list[Seen]]) -> Iterator[Finding]:
    """Find keys that are in more than one shard: loaders that go by key would confuse them.

    In two parts it is one sample, for example in training and in validation.
    """
    first: dict[str, tuple[str, str]] = {}  # by key: the part and the shard
    for part, shards in seen.items():
        for shard in shards:
            path = f"{part}/{shard.path}" if part else shard.path
            for key in shard.keys:
                other_part, other = first.setdefault(key, (part, path))
                if other_part != part:
                    what = f"the same sample is in {other}"
                    yield Finding("in_two_parts", path, None, what, _AGAIN, sample=key)
                elif other != path:
                    what = f"has the same key as a sample of {other}"
                    yield Finding("repeated_key", path, None, what, PACK_AGAIN, sample=key)


def _missing(folders: Sequence[Folder]) -> Iterator[Finding]:
    """Find parts that a run into another part has packed too."""
    packed: dict[str, str] = {}  # by name: the part that names it
    for folder in folders:
        for run in folder.packed.runs if folder.packed else ():
            packed |= dict.fromkeys(run.parts or (), folder.part)
    for name in sorted(packed.keys() - {folder.part for folder in folders}):
        what = f"is missing, but it was packed together with {packed[name]}"
        yield Finding("part_missing", name, None, what, f"restore it from a copy, or {_AGAIN}")


def _outside(folder: Location, parts: Collection[str]) -> Iterator[Finding]:
    """Find tar files beside the parts, for example in a copy of one, or in an own packing."""
    tars = place_at(folder).list(TAR, nested=True, skip=parts)
    names = Counter(path.partition("/")[0] for path, _ in tars)
    for name, count in sorted(names.items()):
        what = f"is outside the parts, with {quantity(count, 'tar files')}"
        what += ": loaders that read every tar would mix the parts"
        yield Finding("outside_parts", name, None, what, "move it out of the folder")


def _not_begun(top: Location, folders: Sequence[Folder], source: Source) -> Iterator[Finding]:
    """Report the records of parts that have no folder, because they had no sample before."""
    if (done := next((one.packed for one in folders if one.packed), None)) is None:
        return
    *before, last = done.runs
    there = {folder.part for folder in folders}
    for name in last.settings.split.names if last.settings.split else ():
        if name not in there:
            own = msgspec.structs.replace(last.settings, part=name)
            runs = [*before, msgspec.structs.replace(last, settings=own)]
            alike = msgspec.structs.replace(done, runs=runs)
            yield from left_out(source, set(), top / name, alike)


def _add_copies(report: VerifyReport, folder: Location, progress: Progress) -> None:
    """Report images of one part that are in another under another id, or why none was searched."""
    from shardwright.comparing.parts import find_copies  # here, because it takes long to load

    if (found := find_copies(folder, progress)) is None:
        return
    report.not_searched = found.not_searched
    for copy in [*found.identical, *found.near]:
        kind, what = IDENTICAL, f"the same file as {copy.image_id} in {copy.part}"
        if copy.similarity is not None:
            like = f"nearly alike by {found.vector}: {copy.image_id} in {copy.part}"
            kind, what = ALIKE, f"{like} (cosine {copy.similarity})"
        place, sample = copy.other_part, copy.other
        one = Finding(kind, place, None, what, found.fix, damage=False, sample=sample)
        report.findings.append(one)
