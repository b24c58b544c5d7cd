"""Checks shards: one folder, or each part of a split folder and that nothing mixes them.

What was found becomes one report, whose fixes say what must be given to lose nothing.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from shardwright.engine import Engine
from shardwright.errors import DamageError
from shardwright.packing.splits import recorded
from shardwright.progress import Progress, quantity
from shardwright.shards.format import manifest
from shardwright.shards.format.again import overwriting, to_another_url
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.findings import (
    ALIKE,
    FAIL,
    IDENTICAL,
    NEEDS_INDEX,
    NOT_COMPARED,
    PASS,
    Finding,
    VerifyReport,
)
from shardwright.store.store import Store
from shardwright.verifying.against import PACK_AGAIN, Source, left_out, read_source
from shardwright.verifying.folder import TAR, check_folder
from shardwright.verifying.loader_rules import check_loaders, findings_of
from shardwright.verifying.shard import Seen

_AGAIN = "pack all of it again with --overwrite"
# Kinds of findings whose file is not below the folder.
_ABSOLUTE = (NOT_COMPARED, "left_out", "empty_left_out", "other_recipe", "no_manifest")
_VERDICTS = (PASS, NEEDS_INDEX, FAIL)  # the worst last
# Without flags behind it; "the same pack with --resume" has them all.
_WAY = re.compile(r"(?:with|and|use) --overwrite(?![\w-]| --)")


def verify_shards(
    target: Location,
    parts: Mapping[str, Location],
    *,
    read_data: bool,
    against: Path | None,
    engine: Engine,
    progress: Progress,
) -> VerifyReport:
    """Check a shard folder and its parts, if it is split.

    ``against`` also compares it with a store, which reads all data.
    """
    started, not_searched = time.monotonic(), None
    source = read_source(Store.at(against), progress) if against is not None else None
    read_data = read_data or source is not None
    findings, seen = list[Finding](), dict[str, list[Seen]]()
    for name, folder in (parts or {"": target}).items():
        found, seen[name] = check_folder(folder, source, read_data, engine, progress)
        findings += _of_part(name, found)
    findings += _repeated_keys(seen)
    if parts:
        findings += _missing(parts)
        findings += _outside(target, parts)
        findings += _not_begun(target, parts, source) if source else ()
        if not any(one.damage for one in findings):
            copies, not_searched = _copies(target, progress)
            findings += copies
    shards = [shard for each in seen.values() for shard in each]
    return VerifyReport(
        path=str(target),
        read_data=read_data,
        checked={"shards": len(shards), "samples": sum(len(shard.keys) for shard in shards)},
        bytes=sum(shard.bytes for shard in shards),
        findings=findings,
        seconds=round(time.monotonic() - started, 3),
        outdated=sum(shard.outdated for shard in shards),
        not_compared=sum(shard.not_compared for shard in shards),
        not_searched=not_searched,
    )


def with_loaders(
    found: VerifyReport, folders: Mapping[str, Location], progress: Progress
) -> VerifyReport:
    """Add which loaders can read the folders; the worst verdict counts."""
    findings, worst = [*found.findings], dict[str, str]()
    for part, folder in folders.items():
        checks = check_loaders(folder, progress)
        findings += _of_part(part, findings_of(checks, folder))
        for check in checks:
            known = worst.get(check.loader, PASS)
            worst[check.loader] = max(known, check.verdict, key=_VERDICTS.index)
    return replace(found, findings=findings, loaders=worst)


def complete_fixes(found: VerifyReport, target: Location, store: Path | None) -> VerifyReport:
    """Complete the fixes that write all again, with the flags of the last run that lose nothing.

    At a URL nothing is replaced: all goes to another one, which keeps nothing. ``store`` is the one
    that the shards were compared with, if any.
    """
    if not any(_WAY.search(one.fix) for one in found.findings):
        return found
    known = recorded(target)
    last = msgspec.structs.replace(known[0], settings=known[1]) if known else None
    folder = target if last and last.is_build else store  # that its lists are named from

    def complete(way: re.Match[str]) -> str:
        can_replace = place_at(target).can_replace
        return overwriting(way[0], last, folder) if can_replace else to_another_url(last, folder)

    fixed = [replace(one, fix=_WAY.sub(complete, one.fix)) for one in found.findings]
    return replace(found, findings=fixed)


def _of_part(part: str, findings: Iterator[Finding] | list[Finding]) -> Iterator[Finding]:
    """Name files from the folder that is verified; a blank part is all of it."""
    for one in findings:
        inside = part and one.kind not in _ABSOLUTE
        yield replace(one, file=f"{part}/{one.file}") if inside else one


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


def _missing(parts: Mapping[str, Location]) -> Iterator[Finding]:
    """Find parts that a run into another part has packed too."""
    packed: dict[str, str] = {}  # by name: the part that names it
    for name, path in parts.items():
        for run in done.runs if (done := _readable(path)) else ():
            packed |= dict.fromkeys(run.parts or (), name)
    for name in sorted(packed.keys() - parts.keys()):
        what = f"is missing, but it was packed together with {packed[name]}"
        yield Finding("part_missing", name, None, what, f"restore it from a copy, or {_AGAIN}")


def _outside(folder: Location, parts: Mapping[str, Location]) -> Iterator[Finding]:
    """Find tar files beside the parts, for example in a copy of one, or in an own packing."""
    tars = place_at(folder).list(TAR, nested=True, skip=parts)
    names = Counter(path.partition("/")[0] for path, _ in tars)
    for name, count in sorted(names.items()):
        what = f"is outside the parts, with {quantity(count, 'tar files')}"
        what += ": loaders that read every tar would mix the parts"
        yield Finding("outside_parts", name, None, what, "move it out of the folder")


def _not_begun(
    folder: Location, parts: Mapping[str, Location], source: Source
) -> Iterator[Finding]:
    """Report the records of parts that have no folder, because they had no sample before."""
    for done in filter(None, map(_readable, parts.values())):
        *before, last = done.runs
        for name in last.settings.split.names if last.settings.split else ():
            if name not in parts:
                own = msgspec.structs.replace(last.settings, part=name)
                runs = [*before, msgspec.structs.replace(last, settings=own)]
                alike = msgspec.structs.replace(done, runs=runs)
                yield from left_out(source, set(), folder / name, alike)
        return


def _readable(path: Location) -> Manifest | None:
    with suppress(DamageError):  # reported already
        return manifest.load_manifest(path)
    return None


def _copies(folder: Location, progress: Progress) -> tuple[list[Finding], str | None]:
    """Report images of one part that are in another under another id, or why none was searched."""
    from shardwright.comparing.parts import find_copies  # here, because it takes long to load

    found = find_copies(folder, progress)
    if found is None:
        return [], None
    findings = []
    for copy in [*found.identical, *found.near]:
        kind, what = IDENTICAL, f"the same file as {copy.image_id} in {copy.part}"
        if copy.similarity is not None:
            like = f"nearly alike by {found.vector}: {copy.image_id} in {copy.part}"
            kind, what = ALIKE, f"{like} (cosine {copy.similarity})"
        place, sample = copy.other_part, copy.other
        findings.append(Finding(kind, place, None, what, found.fix, damage=False, sample=sample))
    return findings, found.not_searched
