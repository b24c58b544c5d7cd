"""Checks a shard folder: that every shard is there, and with --read-data every byte.

Names and sizes are compared with the manifest first, then each shard is checked on its own, on all
cores. A folder without a manifest, of another tool or copied without it, is checked as loaders
would read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

import xxhash

from shardwright.engine import Engine
from shardwright.errors import DamageError, ShardwrightError
from shardwright.layout import STATE_FOLDER
from shardwright.packing.outdated import newer
from shardwright.progress import Milestones, Progress, quantity
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import consistency, manifest
from shardwright.shards.format.again import with_layout
from shardwright.shards.format.empty import empty_faults, empty_folder, empty_members, empty_name
from shardwright.shards.format.index import INDEX_FOLDER
from shardwright.shards.format.manifest import (
    MANIFEST_NAME,
    UNFINISHED_NAME,
    Document,
    Manifest,
    ShardEntry,
    Unfinished,
)
from shardwright.storage.files import TMP_SUFFIX, read_existing
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store import commands
from shardwright.store.findings import EMPTY_OUTDATED, NOT_COMPARED, OUTDATED, Finding
from shardwright.store.store import Store
from shardwright.verifying.against_store import PACK_AGAIN, Source, left_out, other_recipe, update
from shardwright.verifying.sample import OWN_SIZE
from shardwright.verifying.shard import Checker, Outlines, Seen, ShardToCheck

TAR = ".tar"
_RESUME = "run the same pack with --resume"
_BUILD_AGAIN = "build again with --overwrite"


@dataclass
class Folder:
    """A shard folder, as its manifest and the note of an unfinished run describe it."""

    part: str  # of a split; blank if it is none
    path: Location
    files: dict[str, int]  # its tars, also partly written ones, with their sizes
    packed: Manifest | None = None
    unfinished: Unfinished | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def sizes(self) -> dict[str, int]:
        """Give the sizes of its shards."""
        return {path: size for path, size in self.files.items() if path.endswith(TAR)}

    @property
    def done(self) -> Manifest | None:
        """Give the manifest, if no run is unfinished."""
        return None if self.unfinished else self.packed

    @property
    def listed(self) -> Manifest | None:
        """Give what the shards that are there should be."""
        return self.unfinished.base if self.unfinished else self.packed


def read_folder(part: str, path: Location) -> Folder:
    """Read the manifest and the note of an unfinished run, and check them.

    A build that has not touched the shards that are there is reported, and then left aside.
    """
    folder = Folder(part, path, dict(sorted(place_at(path).list((TAR, TAR + TMP_SUFFIX)))))

    def read(name: str, load: Callable[[Location], Document | None]) -> Document | None:
        try:
            return load(path)
        except DamageError as error:
            fix = error.fix or PACK_AGAIN
            folder.findings.append(_finding("manifest_damaged", name, error.what, fix))
            return None

    packed = folder.packed = read(MANIFEST_NAME, manifest.load_manifest)
    unfinished = read(UNFINISHED_NAME, manifest.load_unfinished)
    if unfinished is not None:
        # A build stages its shards; one that replaces others removes their manifest first.
        listed = {entry.path for entry in packed.shards} if packed else set[str]()
        untouched = unfinished.is_build and packed is not None and listed.issuperset(folder.sizes)
        folder.findings.append(_interrupted(path, unfinished, untouched))
        folder.unfinished = None if untouched else unfinished
    if folder.done is not None:
        folder.findings += _contradictions(path, folder.done)
    elif folder.unfinished is None and not (path / STATE_FOLDER / MANIFEST_NAME).is_file():
        folder.findings.append(_no_manifest(path))
    return folder


def check_folder(
    folder: Folder, source: Source | None, read_data: bool, engine: Engine, progress: Progress
) -> list[Seen]:
    """Check the shards of a folder, add what is wrong to its findings, and give what was seen."""
    shards, sizes, findings = place_at(folder.path), folder.sizes, folder.findings
    packed, done, described = folder.packed, folder.done, folder.packed or folder.listed
    checker = Checker(shards, described.samples_of() if described else SPECIFICATION, read_data)
    outlines = Outlines(shards)
    if source is not None and packed is not None:
        source = replace(source, update=update(source.store, folder.path, packed))
    compared = list(_compare(folder, outlines))
    tasks = [one for one in compared if isinstance(one, ShardToCheck)]
    findings += (one for one in compared if isinstance(one, Finding))
    seen = _check(checker, tasks, sizes, source, engine, progress)
    for shard in seen:
        name = None if shard.fits else outlines.find(shard.path)
        findings += [_renamed(shard.path, name)] if name else shard.findings
    findings += _own_sizes(seen, source, packed is not None and packed.runs[-1].is_build)
    if done is not None:
        store = source.store if source else None
        if store and (other := other_recipe(store, folder.path, done)):
            findings.append(other)
            store = None
        findings += _check_empty(folder.path, done, store, read_data=read_data)
    for path in sorted(folder.files.keys() - sizes.keys()) if shards.can_replace else ():
        what, fix = "partly written by an interrupted run", "the next pack removes it"
        findings.append(Finding("leftover", path, None, what, fix, damage=False))
    if source is not None:
        findings += _not_compared(source.store, seen)
        lost = [e for e in (done.shards if done else ()) if sizes.get(e.path) != e.bytes]
        keys = {key for shard in seen for key in shard.keys}
        findings += left_out(source, keys, folder.path, done, lost)
    return seen


def _interrupted(folder: Location, note: Unfinished, untouched: bool) -> Finding:
    """Report a run that has not ended; no damage if it has left the shards as they were."""
    run, fix = "a run", "finish it with the same pack and --resume"
    if note.is_build:
        fix = "run the same shardwright build again"
        if note.replaces:
            run = "a build with --overwrite"
            fix += f" with {with_layout('--overwrite', note.settings)}"
    elif note.sync:
        fix = "finish it with pack --sync"
    elif place_at(folder).can_replace:
        fix += ", or use --overwrite"
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
    path = folder / STATE_FOLDER / manifest.SHA256_NAME
    found = read_existing({manifest.SHA256_NAME: path}).get(manifest.SHA256_NAME)
    if found != manifest.sha256_sums(packed):
        what = "is missing" if found is None else "differs from the manifest"
        fix = _BUILD_AGAIN if is_build else f"{_RESUME} --sha256"
        yield _finding("sha256_differs", manifest.SHA256_NAME, what, fix)


def _no_manifest(folder: Location) -> Finding:
    if (folder / STATE_FOLDER / INDEX_FOLDER).exists():
        what = "is missing, although shards have indexes"
        return _finding("manifest_missing", MANIFEST_NAME, what, PACK_AGAIN)
    what = "has no manifest, so missing shards and changed bytes cannot be detected"
    fix = f"copy {STATE_FOLDER} along with the shards, or pack again"
    return Finding("no_manifest", str(folder), None, what, fix, damage=False)


def _finding(kind: str, name: str, what: str, fix: str) -> Finding:
    return Finding(kind, f"{STATE_FOLDER}/{name}", None, what, fix)


def _renamed(path: str, name: str) -> Finding:
    what, fix = f"is {name} under another name", f"rename it to {name}"
    return Finding("renamed", path, None, what, fix)


def _compare(folder: Folder, outlines: Outlines) -> Iterator[ShardToCheck | Finding]:
    """Compare the shards that are there with the manifest: what to check, and what is wrong."""
    sizes, listed, unfinished = folder.sizes, folder.listed, folder.unfinished
    runs = listed.runs if listed else []
    replaced = unfinished.replaces if unfinished else []
    entries = {e.path: e for e in (listed.shards if listed else []) if e.bucket not in replaced}
    missing = {path: entry for path, entry in entries.items() if path not in sizes}

    def written_again(entry: ShardEntry, resume: str) -> str:
        """Say how a shard of the manifest is written again."""
        if runs[entry.run].is_build:
            return f"restore it from a copy, or {_BUILD_AGAIN}"
        last = unfinished is None and entry.run == len(runs) - 1
        return f"restore it from a copy, or {resume if last else PACK_AGAIN}"

    for path in sizes:
        if entry := entries.get(path):
            yield ShardToCheck(path, entry, written_again(entry, f"delete it and {_RESUME}"))
        elif unfinished is not None:
            how = _BUILD_AGAIN if unfinished.is_build else f"delete it and {_RESUME}"
            yield ShardToCheck(path, None, how)
        elif folder.packed is None:
            yield ShardToCheck(path, None, "pack the samples again with shardwright pack")
        elif missing and (name := outlines.find(path)) in missing:
            yield _renamed(path, name)
            del missing[name]
        else:
            what = "is not in the manifest, but loaders would read it"
            yield Finding("foreign", path, None, what, "move it out of the folder")
    for path, entry in missing.items():
        what = f"is missing, with {quantity(entry.samples, 'samples')}"
        yield Finding("missing", path, None, what, written_again(entry, _RESUME))


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
    total, unit = len(tasks), "shards"
    if checker.read_data:
        total, unit = sum(sizes[task.path] for task in tasks), "B"
    progress.phase("verify", total, unit)
    seen, milestones = list[Seen](), Milestones(len(tasks))
    sent = (_with_source(task, source, checker) for task in tasks)
    with closing(engine.run(checker.check, sent)) as messages:
        for message in messages:
            if isinstance(message, int):
                progress.advance(message)
                continue
            seen.append(message)
            progress.advance(0 if checker.read_data else 1)
            state = "outdated" if message.counts[OUTDATED] else "OK"
            state = "damaged" if any(f.damage for f in message.findings) else state
            if milestones.reached(len(seen)) or state == "damaged":
                count = quantity(len(tasks), "shards")
                progress.note(f"{message.path} {state}, {len(seen)}/{count}")
    return sorted(seen, key=lambda shard: shard.path)  # the same report for any workers


def _own_sizes(seen: list[Seen], source: Source | None, built: bool) -> Iterator[Finding]:
    """Report arrays that have their picture's size and not their bucket's, once per shard."""
    found = [shard for shard in seen if OWN_SIZE in shard.first]
    fix = "derive with --fit bucket and --recompute, then pack with --overwrite"
    fix += "; verify --against DERIVED_DIR prints the command"
    if built:
        fix = "build with --fit bucket and --overwrite"
    elif source is not None and found:
        derive = commands.derive(source.store, fit_buckets=True)
        fix = f"run the same pack with --overwrite after {derive}"
    for shard in found:
        fault, count = shard.first[OWN_SIZE], quantity(shard.counts[OWN_SIZE], "such arrays")
        what = f"{fault.what} ({count} in this shard), so they do not stack in a batch"
        yield fault._replace(what=what, fix=None).finding(shard.path, f"to make them stack: {fix}")


def _not_compared(store: Store, seen: list[Seen]) -> Iterator[Finding]:
    """Report the arrays of packed samples that the store lacks, once."""
    if found := [shard for shard in seen if NOT_COMPARED in shard.first]:
        count = quantity(sum(shard.counts[NOT_COMPARED] for shard in found), "arrays")
        what = f"lacks {count} of packed samples, for example {found[0].first[NOT_COMPARED].what}"
        fix = f"restore them, or make them again with {commands.derive(store)}"
        yield Finding(NOT_COMPARED, str(store.folder), None, what, fix, damage=False)


def _check_empty(
    folder: Location, packed: Manifest, store: Store | None, *, read_data: bool
) -> Iterator[Finding]:
    """Compare the files of the empty caption with the manifest, the recipe and any store."""
    place, listed = empty_folder(folder), packed.empties()
    there = read_existing({suffix: place / suffix for suffix in listed})
    valid = dict[str, bytes]()
    fix = "restore it from a copy, or run the same pack with --append"
    for suffix, checksum in listed.items():
        name = empty_name(suffix)
        if suffix not in there:
            yield Finding("empty_missing", name, None, "is missing, but the manifest lists it", fix)
        elif xxhash.xxh3_64_hexdigest(there[suffix]) != checksum:
            what = "its bytes are not those that were written"
            yield Finding("empty_differs", name, None, what, fix)
        else:
            valid[suffix] = there[suffix]
    for suffix, what in empty_faults(valid, packed.samples_of(), read_data=read_data):
        fix = "delete it in the store, derive, and pack with --overwrite"
        yield Finding("empty_invalid", empty_name(suffix), None, what, fix)
    if store is None or not packed.shards:
        return
    source = read_existing({s: store.empty(s) for s in empty_members(store.recipe)})
    faulty = {suffix for suffix, _ in empty_faults(source, store.recipe, read_data=True)}
    for suffix, data in source.items():
        path, name = store.empty(suffix), empty_name(suffix)
        if suffix not in listed:
            what, fix = "is not in the shards", commands.pack(store, folder, "--append")
            yield Finding("empty_left_out", str(path), None, what, f"run {fix}", damage=False)
        elif valid.get(suffix, data) != data:
            what, fix = f"differs from {path}", f"if the store is right, {PACK_AGAIN}"
            # As with arrays: a valid file that was put there later is a change of the store.
            if suffix not in faulty and newer(path.stat(), (place / suffix).stat()):
                yield Finding(EMPTY_OUTDATED, name, None, what, PACK_AGAIN, damage=False)
            else:
                yield Finding("source_differs", name, None, what, fix)
