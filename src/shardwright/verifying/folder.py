"""Proof that a shard folder is what was packed: every shard there, and with --read-data every byte.

First the names and sizes against the manifest, then each shard on its own, on all cores. A folder
that has no manifest, because another tool made it or because it was not copied along, is checked as
loaders would read it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from shardwright.engine import Engine
from shardwright.errors import DamageError
from shardwright.interrupts import check
from shardwright.layout import STATE_FOLDER
from shardwright.progress import Progress, quantity
from shardwright.recipe import SPECIFICATION
from shardwright.shards.format import consistency, keys, manifest
from shardwright.shards.format.index import INDEX_FOLDER
from shardwright.shards.format.manifest import Manifest, ShardEntry, Unfinished
from shardwright.shards.format.names import bucket_folder, existing_buckets, is_shard_path
from shardwright.storage.files import TMP_SUFFIX, explained
from shardwright.storage.local import LocalStorage
from shardwright.store import commands, provenance
from shardwright.store.findings import Finding, VerifyReport
from shardwright.store.store import Store
from shardwright.verifying.against import Source, read_source
from shardwright.verifying.shard import Checker, Seen, ShardToCheck, file_digest

_TAR = ".tar"
_ANEW = "pack again with --overwrite"
_RESUME = "run the same pack with --resume"


def is_shard_folder(path: Path) -> bool:
    """Whether a folder holds shards, ours or another tool's."""
    state = path / STATE_FOLDER
    notes = (manifest.MANIFEST_NAME, manifest.UNFINISHED_NAME)
    return any((state / name).exists() for name in notes) or any(LocalStorage(path).list(_TAR))


def verify_shards(
    folder: Path, *, read_data: bool, against: Path | None, engine: Engine, progress: Progress
) -> VerifyReport:
    """Check a shard folder; ``against`` also holds it against a store, and so reads all data."""
    started = time.monotonic()
    read_data = read_data or against is not None
    source = read_source(Store.at(against), progress) if against is not None else None
    shards = LocalStorage(folder)
    sizes = dict(sorted(shards.list(_TAR)))
    whole, unfinished, findings = _documents(folder)
    tasks, misplaced = _compare(shards, sizes, whole, unfinished)
    findings += misplaced
    listed = whole or (unfinished.base if unfinished else None)
    recipe = listed.samples_of() if listed else SPECIFICATION
    checker = Checker(shards, recipe, read_data, source)
    seen = _check(checker, tasks, sizes, engine, progress)
    for shard in seen:
        findings += shard.findings
    findings += _repeated_keys(seen)
    findings += _leftovers(shards)
    if source is not None:
        findings += _left_out(source, seen, folder, None if unfinished else whole)
    return VerifyReport(
        path=str(folder),
        read_data=read_data,
        checked={"shards": len(seen), "samples": sum(len(shard.keys) for shard in seen)},
        bytes=sum(shard.bytes for shard in seen),
        findings=findings,
        seconds=round(time.monotonic() - started, 3),
    )


def _documents(folder: Path) -> tuple[Manifest | None, Unfinished | None, list[Finding]]:
    """Read what the folder says of itself."""
    state = folder / STATE_FOLDER
    whole, unfinished, findings = None, None, []
    try:
        whole = manifest.load_manifest(folder)
    except DamageError as error:
        findings.append(_finding("manifest_damaged", manifest.MANIFEST_NAME, error.what, _ANEW))
    try:
        unfinished = manifest.load_unfinished(folder)
    except DamageError as error:
        findings.append(_finding("manifest_damaged", manifest.UNFINISHED_NAME, error.what, _ANEW))
    if unfinished is not None:
        what = "a run was interrupted, or is still under way"
        cure = "when none is, finish it with the same pack and --resume, or use --overwrite"
        findings.append(_finding("unfinished", manifest.UNFINISHED_NAME, what, cure))
    elif whole is not None:
        name, again = manifest.MANIFEST_NAME, "pack all buckets again with --overwrite"
        restore = f"restore it from a copy, or {again}"
        wrong, mixed = consistency.contradictions(whole), consistency.mixed_runs(whole)
        findings += [_finding("manifest_wrong", name, what, restore) for what in wrong]
        findings += [_finding("mixed_components", name, what, again) for what in mixed]
        path = state / manifest.SHA256_NAME
        expected = manifest.sha256_sums(whole)
        with explained(path):
            found = path.read_bytes() if path.is_file() else None
        if found != expected:
            what = "is not there" if found is None else "does not say what the manifest says"
            cure = "run the same pack with --resume --sha256"
            findings.append(_finding("sha256_differs", manifest.SHA256_NAME, what, cure))
    elif (state / INDEX_FOLDER).exists() and not (state / manifest.MANIFEST_NAME).exists():
        what = "is not there, though the indexes of shards are"
        findings.append(_finding("manifest_missing", manifest.MANIFEST_NAME, what, _ANEW))
    elif (above := _packing_of(folder)) is not None:
        what = "is part of a packing, whose manifest is not looked at from here"
        cure = f"verify {above}, which finds lost and changed shards too"
        findings.append(Finding("part", str(folder), None, what, cure, damage=False))
    elif not (state / manifest.MANIFEST_NAME).exists():
        what = (
            "no manifest: whether shards are missing, and whether bytes are as they were written, "
            "cannot be told from the shards alone"
        )
        cure = f"copy {STATE_FOLDER} along with the shards, or pack again"
        findings.append(Finding("no_manifest", str(folder), None, what, cure, damage=False))
    return whole, unfinished, findings


def _packing_of(folder: Path) -> Path | None:
    """Find the packing that a folder is a bucket of, if it is one."""
    above = folder.resolve().parent
    is_part = folder.resolve().name.removeprefix(bucket_folder("")) in existing_buckets(above)
    return above if is_part and (above / STATE_FOLDER / manifest.MANIFEST_NAME).exists() else None


def _finding(kind: str, name: str, what: str, cure: str) -> Finding:
    return Finding(kind, f"{STATE_FOLDER}/{name}", None, what, cure)


def _compare(
    shards: LocalStorage,
    sizes: Mapping[str, int],
    whole: Manifest | None,
    unfinished: Unfinished | None,
) -> tuple[list[ShardToCheck], list[Finding]]:
    """Hold the shards that are there against those that should be: what to check, what is amiss."""
    listed = whole if unfinished is None else unfinished.base
    entries = {entry.path: entry for entry in listed.shards} if listed else {}
    findings = []
    for path in [path for path in entries if not is_shard_path(path)]:
        what = "the manifest lists it, but it is not spelt as a shard"
        findings.append(Finding("misspelt", path, None, what, _ANEW))
        del entries[path]
    replaced = unfinished.replaces if unfinished else []
    entries = {path: entry for path, entry in entries.items() if entry.bucket not in replaced}
    missing = {path: entry for path, entry in entries.items() if path not in sizes}
    unlisted = [path for path in sizes if path not in entries]
    last = len(listed.runs) - 1 if listed and unfinished is None else None
    tasks = []
    for path in sizes:
        entry = entries.get(path)
        if entry is not None:
            again = f"delete it and {_RESUME}" if entry.run == last else _ANEW
            tasks.append(ShardToCheck(path, entry, f"bring back a sound copy, or {again}"))
        elif whole is None or unfinished is not None:
            cure = "pack the samples again with shardwright pack"
            if unfinished is not None:
                cure = f"delete it and {_RESUME}"
            tasks.append(ShardToCheck(path, None, cure))
    if whole is not None and unfinished is None:
        for path in unlisted:
            name = _renamed(shards, path, sizes[path], missing)
            if name is not None:
                what = f"is {name} under another name"
                findings.append(Finding("renamed", path, None, what, f"rename it to {name}"))
                del missing[name]
            else:
                what = "the manifest does not list it, yet loaders would read it"
                findings.append(Finding("foreign", path, None, what, "move it out of the folder"))
    for path, entry in missing.items():
        what = f"is missing, and with it {quantity(entry.samples, 'samples')}"
        cure = f"bring it back, or {_RESUME if entry.run == last else _ANEW}"
        findings.append(Finding("missing", path, None, what, cure))
    return tasks, findings


def _renamed(
    shards: LocalStorage, path: str, size: int, missing: Mapping[str, ShardEntry]
) -> str | None:
    """Say which of the missing shards a file is, if any; it is read only when the sizes agree."""
    alike = [entry for entry in missing.values() if entry.bytes == size]
    if not alike:
        return None
    with shards.open(path) as file:
        digest = file_digest(file)
    return next((entry.path for entry in alike if entry.xxh3 == digest), None)


def _check(
    checker: Checker,
    tasks: list[ShardToCheck],
    sizes: Mapping[str, int],
    engine: Engine,
    progress: Progress,
) -> list[Seen]:
    if checker.read_data:
        progress.phase("verify", sum(sizes[task.path] for task in tasks), "B")
    else:
        progress.phase("verify", len(tasks), "shards")
    seen: list[Seen] = []
    with closing(engine.run(checker.check, tasks)) as messages:
        for message in messages:
            if isinstance(message, int):
                progress.advance(message)
                continue
            seen.append(message)
            progress.advance(0 if checker.read_data else 1)
            state = "damaged" if any(f.damage for f in message.findings) else "sound"
            progress.note(f"{message.path} {state}, {len(seen)}/{quantity(len(tasks), 'shards')}")
    return sorted(seen, key=lambda shard: shard.path)  # the same report for any workers


def _repeated_keys(seen: list[Seen]) -> Iterator[Finding]:
    """Find keys that are in more than one shard: loaders that go by key would confuse them."""
    first: dict[str, str] = {}
    for shard in seen:
        for key in shard.keys:
            other = first.setdefault(key, shard.path)
            if other != shard.path:
                what = f"has the same key as a sample of {other}"
                yield Finding("repeated_key", shard.path, None, what, _ANEW, sample=key)


def _left_out(
    source: Source, seen: list[Seen], folder: Path, whole: Manifest | None
) -> Iterator[Finding]:
    """Note the records of the store of which no sample is in the shards."""
    packed = {key for shard in seen for key in shard.keys}
    store, longest = source.store, source.store.recipe.longest_key
    absent = []
    for image_id in source.lines:
        check()
        if keys.key(image_id, longest) not in packed:
            absent.append(image_id)
    if not absent:
        return
    count = quantity(len(absent), "records")
    what = f"has {count} of which no shard holds a sample, for example {absent[0]}"
    names = whole.jsonls() if whole else []
    if whole and manifest.relative_name(store.jsonl, store.folder) in names:
        how, cure = "--append", "to pack those that are ready"
        if listed := consistency.other_settings(whole, provenance.readable(store.folder)):
            how, cure = "--overwrite", f"the store was made with other settings ({listed}); to pack"
            cure += " all again"
        as_before = msgspec.structs.replace(whole.runs[-1].settings, limit=None, buckets=[])
        pack = commands.pack(store, folder, how, *as_before.flags())
        cure += f", run {pack}"
    elif names:  # what is left out may be held out of training
        paths = " and ".join(str(store.of(name).jsonl) for name in names)
        cure = f"the shards were packed from {paths}, a part of the store"
    else:
        cure = "which JSONL was packed is not recorded, so this may be a part that was left out on "
        cure += "purpose; or --limit or --bucket left them out, or they are not ready"
    yield Finding("left_out", str(store.jsonl), None, what, cure, damage=False)


def _leftovers(shards: LocalStorage) -> Iterator[Finding]:
    for path, _ in sorted(shards.list(_TAR + TMP_SUFFIX)):
        what = "was left half written by an interrupted run"
        cure = "the next pack removes it"
        yield Finding("leftover", path, None, what, cure, damage=False)
