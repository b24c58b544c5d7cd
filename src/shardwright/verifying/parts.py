"""Checks a split folder: each part as a shard folder, and that nothing mixes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardwright.engine import Engine
from shardwright.errors import DamageError
from shardwright.progress import Progress, quantity
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import Manifest
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.findings import ALIKE, IDENTICAL, NOT_COMPARED, Finding, VerifyReport
from shardwright.store.store import Store
from shardwright.verifying.against import Source, left_out, read_source
from shardwright.verifying.folder import TAR, check_folder
from shardwright.verifying.shard import Seen

if TYPE_CHECKING:
    from shardwright.comparing.parts import InParts

_AGAIN = "pack all of it again with --overwrite"
# Kinds of findings whose file is not below the folder.
_ABSOLUTE = (NOT_COMPARED, "left_out", "empty_left_out", "other_recipe", "no_manifest")


def verify_parts(
    folder: Location,
    parts: Mapping[str, Location],
    *,
    read_data: bool,
    against: Path | None,
    engine: Engine,
    progress: Progress,
) -> VerifyReport:
    """Check every part of a split folder, as one report."""
    source = read_source(Store.at(against), progress) if against is not None else None
    found = {
        name: check_folder(path, source, read_data, engine, progress)
        for name, path in parts.items()
    }
    reports = {name: report for name, (report, _) in found.items()}
    findings = [
        one if one.kind in _ABSOLUTE else replace(one, file=f"{name}/{one.file}")
        for name, report in reports.items()
        for one in report.findings
    ]
    findings += _missing(parts)
    findings += _outside(folder, parts)
    if source is not None:
        findings += _not_begun(folder, parts, source)
    findings += _in_two_parts({name: seen for name, (_, seen) in found.items()})
    every, found_copies = list(reports.values()), None
    if not any(one.damage for one in findings):
        from shardwright.comparing.parts import find_copies  # here, because it takes long to load

        found_copies = find_copies(folder, progress)
    if found_copies is not None:
        findings += _copies(found_copies)
    return VerifyReport(
        path=str(folder),
        read_data=every[0].read_data,
        checked={kind: sum(one.checked[kind] for one in every) for kind in every[0].checked},
        bytes=sum(one.bytes for one in every),
        findings=findings,
        seconds=round(sum(one.seconds for one in every), 3),
        outdated=sum(one.outdated for one in every),
        not_compared=sum(one.not_compared for one in every),
        not_searched=found_copies.not_searched if found_copies else None,
    )


def _missing(parts: Mapping[str, Location]) -> Iterator[Finding]:
    """Find parts that a run into another part has packed too."""
    packed: dict[str, str] = {}  # by name: the part that names it
    for name, path in parts.items():
        for run in done.runs if (done := _readable(path)) else ():
            packed |= dict.fromkeys(run.parts or (), name)
    for name in sorted(packed.keys() - parts.keys()):
        what = f"is missing, but it was packed together with {packed[name]}"
        fix = f"restore it from a copy, or {_AGAIN}"
        yield Finding("part_missing", name, None, what, fix)


def _outside(folder: Location, parts: Mapping[str, Location]) -> Iterator[Finding]:
    """Find tar files beside the parts, for example in a copy of one."""
    for name, tars in sorted(Counter(_tars(folder, parts)).items()):
        what = f"is outside the parts, with {quantity(tars, 'tar files')}"
        why = "loaders that read every tar would mix the parts"
        fix = "move it out of the folder"
        yield Finding("outside_parts", name, None, f"{what}: {why}", fix)


def _tars(folder: Location, parts: Mapping[str, Location]) -> Iterator[str]:
    """Give for each tar file outside the parts the name below the folder that it is, or is in.

    Those of an own packing count too.
    """
    for path, _ in place_at(folder).list(TAR, nested=True, skip=parts):
        yield path.partition("/")[0]


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


def _in_two_parts(seen: Mapping[str, list[Seen]]) -> Iterator[Finding]:
    """Find samples that are in more than one part, for example in training and in validation."""
    first: dict[str, tuple[str, str]] = {}  # by key: the part and the shard
    for name, shards in seen.items():
        for shard in shards:
            for key in shard.keys:
                part, other = first.setdefault(key, (name, f"{name}/{shard.path}"))
                if part != name:
                    what = f"the same sample is in {other}"
                    path = f"{name}/{shard.path}"
                    yield Finding("in_two_parts", path, None, what, _AGAIN, sample=key)


def _copies(found: InParts) -> Iterator[Finding]:
    """Report images of one part that are in another under another id."""
    for kind, like, each in (
        (IDENTICAL, "the same file as", found.identical),
        (ALIKE, f"nearly alike by {found.vector}:", found.near),
    ):
        for copy in each:
            cosine = "" if copy.similarity is None else f" (cosine {copy.similarity})"
            what = f"{like} {copy.image_id} in {copy.part}{cosine}"
            place, sample = copy.other_part, copy.other
            yield Finding(kind, place, None, what, found.fix, damage=False, sample=sample)
