"""A migration from end to end.

The JSONL is read twice: once to find ids that are met more than once, and once, in parts, to
migrate. It is replaced in one step at the end. Until then it is as it was, so a run that was killed
is simply run again: the arrays it has written are found, compared and kept.
"""

from __future__ import annotations

import filecmp
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shardwright.engine import Engine
from shardwright.errors import StorageError
from shardwright.interrupts import check
from shardwright.migrating.summary import MigrateSummary
from shardwright.progress import Progress, quantity
from shardwright.recipe import Component
from shardwright.storage import files, locks
from shardwright.store.arrays import Array, read_array, write_arrays
from shardwright.store.folders import leftovers
from shardwright.store.journal import recover
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Line
from shardwright.store.rewrite import Part, Rewrite, target
from shardwright.store.stage1 import Repeated, Stage2, repeated_ids, to_stage2
from shardwright.store.store import Store

_BACKUP_SUFFIX = ".stage1.bak"
_PART_BYTES = 1 << 23  # whose arrays are published together, so that many wait for the disk at once
_NOTE_EVERY = 5000  # lines


def run(
    store: Store, backup: bool, dry_run: bool, engine: Engine, progress: Progress
) -> MigrateSummary:
    """Migrate, or only look what that would do."""
    migration = _Migration(store, dry_run, engine, progress)
    if dry_run:
        if store.journal.exists():
            progress.warn(f"{store.journal}: not counted here; it is merged first")
        return migration.run(backup)
    with locks.lock(store.folder):
        store.make_folders()
        recovered = recover(store.jsonl)
        try:
            summary = migration.run(backup)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note("run the same command to continue")
            raise
        summary.recovered = recovered
    return summary


class _Migration:
    """One run over a JSONL, and its books."""

    def __init__(self, store: Store, dry_run: bool, engine: Engine, progress: Progress) -> None:
        self.store, self.dry_run = store, dry_run
        self.engine, self.progress = engine, progress
        self.summary = MigrateSummary(str(store.jsonl), dry_run)

    def run(self, backup: bool) -> MigrateSummary:
        summary = self.summary
        with Rewrite(self.store.jsonl) as rewrite:
            summary.jsonl_bytes_before = summary.jsonl_bytes_after = rewrite.size
            starts = [(0, 0)]
            repeated = repeated_ids(self._read(rewrite, starts))
            # Closed before anything else ends: no worker writes after we have let go of the lock.
            with closing(self._migrate(rewrite, starts, repeated)) as fates:
                for fate in fates:
                    self._enter(fate)
                    if fate.become is not None and not self.dry_run:
                        rewrite.replace(fate.start, fate.end, fate.become)
            if rewrite.changed:
                if backup:
                    summary.backup = str(_keep_original(self.store.jsonl))
                rewrite.publish()
        return summary

    def _read(self, rewrite: Rewrite, starts: list[tuple[int, int]]) -> Iterator[Line]:
        """Read the lines, and note where parts begin: how many lines and bytes lie before."""
        self.progress.phase("read", rewrite.size, "B")
        number = 0
        for line in rewrite.lines():
            if line.offset - starts[-1][1] >= _PART_BYTES:
                self.progress.advance(line.offset - starts[-1][1])
                starts.append((line.number - 1, line.offset))
            yield line
            number = line.number
            if number % _NOTE_EVERY == 0:
                self.progress.note(f"{number:,} lines")
        self.progress.advance(rewrite.size - starts[-1][1])
        self.progress.note(f"all {quantity(number, 'lines')}")

    def _migrate(
        self, rewrite: Rewrite, starts: list[tuple[int, int]], repeated: Repeated
    ) -> Generator[_Fate, None, None]:
        """Have the workers migrate one part each; tell of the lines in their order."""
        self.progress.phase("migrate", rewrite.size, "B")
        ends = [start for _, start in starts[1:]] + [rewrite.size]
        parts = [rewrite.part(*start, end) for start, end in zip(starts, ends, strict=True)]
        work = partial(_migrate_part, self.store, self.dry_run, repeated)
        done: dict[int, list[_Fate]] = {}
        number = noted = 0
        try:
            with closing(self.engine.run(work, parts)) as results:
                for part in parts:
                    while part.start not in done:
                        start, fates = next(results)
                        done[start] = fates
                    yield from (fates := done.pop(part.start))
                    self.progress.advance(part.end - part.start)
                    number = fates[-1].number if fates else number
                    if number - noted >= _NOTE_EVERY:
                        self.progress.note(f"{number:,} lines")
                        noted = number
        except BaseException:
            self._remove_unfinished()
            raise
        self.progress.note(f"all {quantity(number, 'lines')}")

    def _remove_unfinished(self) -> None:
        """Remove what workers that were stopped have left; we hold the store's lock."""
        if not self.dry_run:
            with suppress(StorageError):  # the error that brought us here is the one to report
                for path in leftovers(self.store):
                    if path.parent != self.store.folder:
                        files.remove(path)

    def _enter(self, fate: _Fate) -> None:
        """Enter in the books what became of a line."""
        summary = self.summary
        summary.total_records += 1
        if fate.reason is not None:
            summary.unmigrated_records += 1
            summary.unmigrated_by_reason.setdefault(fate.reason, []).append(fate.number)
        elif fate.become is None:
            summary.already_migrated += 1
        else:
            summary.migrated_records += 1
            summary.jsonl_bytes_after += len(fate.become) - (fate.end - fate.start)
        for counts, names in (
            (summary.arrays_written, fate.written),
            (summary.arrays_found, fate.found),
        ):
            for name in names:
                counts[name] = counts.get(name, 0) + 1
        for name in fate.differing:
            summary.arrays_differing.setdefault(name, []).append(fate.number)


@dataclass
class _Fate:
    """What becomes of a line: a record, or nothing, for a reason or as it is one already."""

    number: int
    start: int
    end: int
    reason: str | None = None
    become: bytes | None = None
    written: list[str] = field(default_factory=list)  # names of components
    found: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def _migrate_part(
    store: Store, dry_run: bool, repeated: Repeated, part: Part
) -> Iterator[tuple[int, list[_Fate]]]:
    """Write the arrays of a part; when they are on the disk, say what becomes of its lines."""
    fates: list[_Fate] = []
    waiting: list[tuple[Path, Array]] = []
    for line in part.lines():
        check()
        fate = _Fate(line.number, line.offset, line.offset + len(line.data or b""))
        fates.append(fate)
        try:
            become = to_stage2(line, repeated, store.recipe)
            if become is not None:
                waiting += _missing(store, become, fate)
                fate.become = become.line
        except BadRecordError as error:
            fate.reason = error.reason
    if not dry_run:
        write_arrays(waiting)
    yield part.start, fates


def _missing(store: Store, become: Stage2, fate: _Fate) -> list[tuple[Path, Array]]:
    """Find which arrays are to be written; one that is there is compared and never replaced."""
    there = [
        (component, array, path, _existing(path, component))
        for component, array in become.arrays.items()
        for path in [store.array(component, become.image_id)]
    ]
    missing = []
    for component, array, path, existing in there:
        if existing is None:
            missing.append((path, array))
            fate.written.append(component.name)
        elif existing.shape == array.shape and (existing == array).all():
            fate.found.append(component.name)
        else:
            fate.differing.append(component.name)
    return missing


def _existing(path: Path, component: Component) -> Array | None:
    try:
        return read_array(path, component)
    except BadArrayError as error:
        if error.reason == "missing":
            return None
        raise BadRecordError(f"{component.name}_{error.reason}") from None


def _keep_original(jsonl: Path) -> Path:
    """Keep the file as it is now under another name; never replace one that is kept already."""
    jsonl = target(jsonl)
    number = 1
    while True:
        backup = jsonl.with_name(jsonl.name + _BACKUP_SUFFIX + (f".{number}" if number > 1 else ""))
        if not backup.exists():
            files.keep(jsonl, backup)
            return backup
        # A run that was killed here has kept it: as a link, or as a copy where there are no links.
        if backup.samefile(jsonl) or filecmp.cmp(backup, jsonl, shallow=False):
            return backup
        number += 1
