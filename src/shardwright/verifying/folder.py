"""Checks a shard folder: that every shard is there, and with --read-data every byte.

Names and sizes are compared with the manifest first, then each shard is checked on its own, on all
cores. A folder without a manifest, of another tool or copied without it, is checked as loaders
would read it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from shardwright.engine import Engine
from shardwright.errors import DamageError, ShardwrightError
from shardwright.layout import STATE_FOLDER
from shardwright.packing import again
from shardwright.progress import Milestones, Progress, quantity
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import consistency, manifest, sums
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.index import INDEX_FOLDER
from shardwright.shards.format.manifest import (
    MANIFEST_NAME,
    UNFINISHED_NAME,
    Manifest,
    ShardEntry,
)
from shardwright.shards.format.names import bucket_folder, existing_buckets
from shardwright.shards.format.parts import is_packed, top_folder
from shardwright.storage.files import TMP_SUFFIX, read_existing
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import commands
from shardwright.store.findings import NOT_COMPARED, Finding, VerifyReport
from shardwright.store.store import Store
from shardwright.verifying.against import PACK_AGAIN, Source, left_out, read_source, update
from shardwright.verifying.empty import check_empty
from shardwright.verifying.shard import Checker, Outlines, Seen, ShardToCheck

TAR = ".tar"
_RESUME = "run the same pack with --resume"
_BUILD_AGAIN = "build again with --overwrite"


def is_shard_folder(path: Location) -> bool:
    """Whether a folder holds shards, ours or another tool's."""
    return is_packed(path) or any(place_at(path).list(TAR))


def verify_shards(
    folder: Location, *, read_data: bool, against: Path | None, engine: Engine, progress: Progress
) -> VerifyReport:
    """Check a shard folder; ``against`` also compares it with a store, which reads all data."""
    source = read_source(Store.at(against), progress) if against is not None else None
    return check_folder(folder, source, read_data, engine, progress)[0]


def check_folder(
    folder: Location, source: Source | None, read_data: bool, engine: Engine, progress: Progress
) -> tuple[VerifyReport, list[Seen]]:
    """Check a shard folder; give also what was seen of each shard."""
    started = time.monotonic()
    read_data = read_data or source is not None
    shards = place_at(folder)
    there = dict(sorted(shards.list((TAR, TAR + TMP_SUFFIX))))
    sizes = {path: size for path, size in there.items() if path.endswith(TAR)}
    partly = sorted(there.keys() - sizes.keys()) if shards.can_replace else []
    packed, unfinished, findings = _documents(folder, sizes)
    listed = packed or (unfinished.base if unfinished else None)
    recipe = listed.samples_of() if listed else SPECIFICATION
    checker, outlines = Checker(shards, recipe, read_data), Outlines(shards)
    tasks, misplaced = _compare(outlines, sizes, packed, unfinished)
    findings += misplaced
    if source is not None and packed is not None:
        source = replace(source, update=update(source.store, folder, packed))
    seen = _check(checker, tasks, sizes, source, engine, progress)
    for shard in seen:
        other = None if shard.fits else outlines.find(shard.path)
        findings += shard.findings if other is None else [_renamed(shard.path, other)]
    built = packed is not None and packed.runs[-1].is_build
    findings += _own_sizes(seen, source, built)
    findings += _repeated_keys(seen)
    if packed is not None and unfinished is None:
        against_store = source.store if source else None
        if against_store and (changes := consistency.other_recipe(packed, against_store.recipe)):
            what = f"the store has another recipe than its shards ({changes})"
            path, fix = str(against_store.folder), PACK_AGAIN
            if shards.can_replace:
                top = top_folder(folder, packed.runs[-1].settings)
                fix = f"run {again.overwrite(against_store, top)}"
            findings.append(Finding("other_recipe", path, None, what, fix, damage=False))
            against_store = None
        findings += check_empty(folder, packed, against_store, read_data=read_data)
    for path in partly:
        what, fix = "partly written by an interrupted run", "the next pack removes it"
        findings.append(Finding("leftover", path, None, what, fix, damage=False))
    if source is not None:
        findings += _not_compared(source.store, seen)
        done = None if unfinished else packed
        lost = [e for e in (done.shards if done else ()) if sizes.get(e.path) != e.bytes]
        findings += left_out(
            source, {key for shard in seen for key in shard.keys}, folder, done, lost
        )
    report = VerifyReport(
        path=str(folder),
        read_data=read_data,
        checked={"shards": len(seen), "samples": sum(len(shard.keys) for shard in seen)},
        bytes=sum(shard.bytes for shard in seen),
        findings=findings,
        seconds=round(time.monotonic() - started, 3),
        outdated=sum(shard.outdated for shard in seen),
        not_compared=sum(shard.not_compared for shard in seen),
    )
    return report, seen


def _documents(
    folder: Location, there: Collection[str]
) -> tuple[Manifest | None, manifest.Unfinished | None, list[Finding]]:
    """Read the manifest and the note of an unfinished run, and check them.

    A build that has not touched the shards that are ``there`` is reported, and then left aside.
    """
    packed, unfinished, findings = None, None, list[Finding]()
    try:
        packed = manifest.load_manifest(folder)
    except DamageError as error:
        findings.append(
            _finding("manifest_damaged", MANIFEST_NAME, error.what, error.fix or PACK_AGAIN)
        )
    try:
        unfinished = manifest.load_unfinished(folder)
    except DamageError as error:
        findings.append(
            _finding("manifest_damaged", UNFINISHED_NAME, error.what, error.fix or PACK_AGAIN)
        )
    if unfinished is not None:
        # A build stages its shards; one that replaces others removes their manifest first.
        listed = {entry.path for entry in packed.shards} if packed else set[str]()
        untouched = unfinished.is_build and packed is not None and listed.issuperset(there)
        findings.append(_interrupted(folder, unfinished, untouched))
        unfinished = None if untouched else unfinished
    if packed is not None and unfinished is None:
        findings += _contradictions(folder, packed)
    elif unfinished is None and not (folder / STATE_FOLDER / MANIFEST_NAME).is_file():
        findings.append(_no_manifest(folder))
    return packed, unfinished, findings


def _interrupted(folder: Location, note: manifest.Unfinished, untouched: bool) -> Finding:
    """Report a run that has not ended; no damage if it has left the shards as they were."""
    run, fix = "a run", "finish it with the same pack and --resume"
    if place_at(folder).can_replace:
        fix += ", or use --overwrite"
    if note.sync:
        fix = "finish it with pack --sync"
    if note.is_build:
        fix = "run the same shardwright build again"
        if note.replaces:
            run = "a build with --overwrite"
            fix += f" with {with_layout('--overwrite', note.settings)}"
    what = f"{run} was interrupted, or is still active"
    what += ", and the shards of the last run are still there" if untouched else ""
    found = _finding("unfinished", UNFINISHED_NAME, what, f"if none is active, {fix}")
    return replace(found, damage=not untouched)


def _contradictions(folder: Location, packed: Manifest) -> Iterator[Finding]:
    """Find what is wrong in a manifest and its SHA256SUMS, whatever the shards hold."""
    is_build = packed.runs[-1].is_build
    how = _BUILD_AGAIN if is_build else "pack all buckets again with --overwrite"
    for what in consistency.contradictions(packed):
        yield _finding("manifest_wrong", MANIFEST_NAME, what, f"restore it from a copy, or {how}")
    for what in consistency.mixed_runs(packed):
        yield _finding("mixed_components", MANIFEST_NAME, what, how)
    path = folder / STATE_FOLDER / sums.SHA256_NAME
    found = read_existing({sums.SHA256_NAME: path}).get(sums.SHA256_NAME)
    if found != sums.sha256_sums(packed):
        what = "is missing" if found is None else "differs from the manifest"
        fix = _BUILD_AGAIN if is_build else f"{_RESUME} --sha256"
        yield _finding("sha256_differs", sums.SHA256_NAME, what, fix)


def _no_manifest(folder: Location) -> Finding:
    if (folder / STATE_FOLDER / INDEX_FOLDER).exists():
        what = "is missing, although shards have indexes"
        return _finding("manifest_missing", MANIFEST_NAME, what, PACK_AGAIN)
    above = folder.resolve().parent
    is_bucket = folder.resolve().name.removeprefix(bucket_folder("")) in existing_buckets(above)
    if is_bucket and (above / STATE_FOLDER / MANIFEST_NAME).is_file():
        what = "is part of a shard folder, whose manifest is not checked"
        fix = f"verify {above}, which also finds missing and changed shards"
        return Finding("part", str(folder), None, what, fix, damage=False)
    what = "has no manifest, so missing shards and changed bytes cannot be detected"
    fix = f"copy {STATE_FOLDER} along with the shards, or pack again"
    return Finding("no_manifest", str(folder), None, what, fix, damage=False)


def _finding(kind: str, name: str, what: str, fix: str) -> Finding:
    return Finding(kind, f"{STATE_FOLDER}/{name}", None, what, fix)


def _compare(
    outlines: Outlines,
    sizes: Mapping[str, int],
    packed: Manifest | None,
    unfinished: manifest.Unfinished | None,
) -> tuple[list[ShardToCheck], list[Finding]]:
    """Compare the shards that are there with the manifest: what to check, and what is wrong."""
    listed = unfinished.base if unfinished else packed
    replaced = unfinished.replaces if unfinished else []
    entries = {e.path: e for e in (listed.shards if listed else []) if e.bucket not in replaced}
    findings: list[Finding] = []
    missing = {path: entry for path, entry in entries.items() if path not in sizes}
    runs = listed.runs if listed else []
    last = len(runs) - 1 if unfinished is None else None
    built = {number for number, run in enumerate(runs) if run.is_build}

    def written_again(entry: ShardEntry, resume: str) -> str:
        """Say how a shard of the manifest is written again."""
        if entry.run in built:
            return _BUILD_AGAIN
        return resume if entry.run == last else PACK_AGAIN

    tasks = []
    for path in sizes:
        if path in entries:
            how = written_again(entries[path], f"delete it and {_RESUME}")
            tasks.append(ShardToCheck(path, entries[path], f"restore it from a copy, or {how}"))
        elif unfinished is not None:
            how = _BUILD_AGAIN if unfinished.is_build else f"delete it and {_RESUME}"
            tasks.append(ShardToCheck(path, None, how))
        elif packed is None:
            tasks.append(ShardToCheck(path, None, "pack the samples again with shardwright pack"))
        elif missing and (name := outlines.find(path)) in missing:
            findings.append(_renamed(path, name))
            del missing[name]
        else:
            what = "is not in the manifest, but loaders would read it"
            findings.append(Finding("foreign", path, None, what, "move it out of the folder"))
    for path, entry in missing.items():
        what = f"is missing, with {quantity(entry.samples, 'samples')}"
        fix = f"restore it from a copy, or {written_again(entry, _RESUME)}"
        findings.append(Finding("missing", path, None, what, fix))
    return tasks, findings


def _renamed(path: str, name: str) -> Finding:
    what, fix = f"is {name} under another name", f"rename it to {name}"
    return Finding("renamed", path, None, what, fix)


def _with_source(task: ShardToCheck, source: Source | None, checker: Checker) -> ShardToCheck:
    """Give a task the records of its samples; without an index, all records."""
    with suppress(ShardwrightError):  # reported by the worker
        if source and (shard := checker.index(task)):
            lines = {i: source.lines[i] for i in shard.head.ids if i in source.lines}
            source = replace(source, lines=lines)
    return replace(task, source=source)


def _check(
    checker: Checker,
    tasks: list[ShardToCheck],
    sizes: Mapping[str, int],
    source: Source | None,
    engine: Engine,
    progress: Progress,
) -> list[Seen]:
    if checker.read_data:
        progress.phase("verify", sum(sizes[task.path] for task in tasks), "B")
    else:
        progress.phase("verify", len(tasks), "shards")
    seen, milestones = list[Seen](), Milestones(len(tasks))
    sent = (_with_source(task, source, checker) for task in tasks)
    with closing(engine.run(checker.check, sent)) as messages:
        for message in messages:
            if isinstance(message, int):
                progress.advance(message)
                continue
            seen.append(message)
            progress.advance(0 if checker.read_data else 1)
            state = "outdated" if message.outdated else "OK"
            state = "damaged" if any(f.damage for f in message.findings) else state
            if milestones.reached(len(seen)) or state == "damaged":
                count = quantity(len(tasks), "shards")
                progress.note(f"{message.path} {state}, {len(seen)}/{count}")
    return sorted(seen, key=lambda shard: shard.path)  # the same report for any workers


def _own_sizes(seen: list[Seen], source: Source | None, built: bool) -> Iterator[Finding]:
    """Report arrays that have their picture's size and not their bucket's, once per shard."""
    found = [(shard, shard.own_size) for shard in seen if shard.own_size]
    fix = "derive with --fit bucket and --recompute, then pack with --overwrite"
    if built:
        fix = "build with --fit bucket and --overwrite"
    elif source is None:
        fix += "; verify --against DERIVED_DIR prints the command"
    elif found:
        derive = commands.derive(source.store, fit_buckets=True)
        fix = f"run the same pack with --overwrite after {derive}"
    for shard, fault in found:
        count = quantity(shard.own_sizes, "such arrays")
        what = f"{fault.what} ({count} in this shard), so they do not stack in a batch"
        yield fault._replace(what=what, fix=None).finding(shard.path, f"to make them stack: {fix}")


def _not_compared(store: Store, seen: list[Seen]) -> Iterator[Finding]:
    """Report the arrays of packed samples that the store lacks, once."""
    if found := [shard for shard in seen if shard.missing]:
        count = quantity(sum(shard.not_compared for shard in found), "arrays")
        what = f"lacks {count} of packed samples, for example {found[0].missing}"
        fix = f"restore them, or make them again with {commands.derive(store)}"
        yield Finding(NOT_COMPARED, str(store.folder), None, what, fix, damage=False)


def _repeated_keys(seen: list[Seen]) -> Iterator[Finding]:
    """Find keys that are in more than one shard, which loaders that go by key would confuse."""
    first: dict[str, str] = {}
    for shard in seen:
        for key in shard.keys:
            other = first.setdefault(key, shard.path)
            if other != shard.path:
                what = f"has the same key as a sample of {other}"
                yield Finding("repeated_key", shard.path, None, what, PACK_AGAIN, sample=key)
