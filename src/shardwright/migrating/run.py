"""A migration from end to end.

The JSONL is read twice: once to find ids that occur more than once, and once, in parts, to migrate.
It is replaced in one step at the end, so a run that was killed is simply run again: the arrays it
has written are found, compared and kept.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path

from shardwright.engine import Engine
from shardwright.errors import StorageError
from shardwright.interrupts import check
from shardwright.migrating import MigrateSummary
from shardwright.progress import Progress, quantity
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.store.arrays import Array, read_array, write_arrays
from shardwright.store.journal import Part, Rewrite, recover, target
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Line
from shardwright.store.stage1 import Repeated, Stage2, repeated_ids, to_stage2
from shardwright.store.store import Store, make_identity
from shardwright.summary import require_sum

_BACKUP_SUFFIX = ".stage1.bak"
_PART_BYTES = 1 << 23  # whose arrays are published together, so that many wait for the disk at once
_NOTE_EVERY = 5000  # lines


def run(
    store: Store, backup: bool, dry_run: bool, engine: Engine, progress: Progress
) -> MigrateSummary:
    """Migrate, or only report what that would do."""
    summary = MigrateSummary(str(store.jsonl), dry_run)
    if dry_run:
        if store.journal.exists():
            progress.warn(f"{store.journal}: not counted; a migration merges it first")
        _migrate(store, backup, summary, engine, progress)
        return summary
    with place_at(store.folder).lease():
        store.record()
        store.make_folders()
        store.sync()
        summary.recovered = recover(store.jsonl)
        try:
            _migrate(store, backup, summary, engine, progress)
        except BaseException as error:
            with suppress(StorageError):  # the first error is the one to report
                for path in store.leftovers():  # of workers that were stopped
                    if path.parent != store.folder:
                        files.remove(path)
            if isinstance(error, KeyboardInterrupt):
                error.add_note("run the same command to continue")
            raise
        make_identity(store)
    return summary


def _migrate(
    store: Store, backup: bool, summary: MigrateSummary, engine: Engine, progress: Progress
) -> None:
    with Rewrite(store.jsonl) as rewrite:
        summary.jsonl_bytes_before = summary.jsonl_bytes_after = rewrite.size
        starts = [(0, 0)]
        repeated = repeated_ids(_read(rewrite, starts, progress))
        ends = [start for _, start in starts[1:]] + [rewrite.size]
        parts = [rewrite.part(*start, end) for start, end in zip(starts, ends, strict=True)]
        progress.phase("migrate", rewrite.size, "B")
        done: dict[int, list[_Fate]] = {}
        noted = 0
        work = partial(_migrate_part, store, summary.dry_run, repeated)
        # Closed before anything else ends, so that no worker writes after the lock is released.
        with closing(engine.run(work, parts)) as results:
            for part in parts:
                while part.start not in done:
                    done.update([next(results)])
                for fate in done.pop(part.start):
                    _count(fate, summary)
                    if fate.become is not None and not summary.dry_run:
                        rewrite.replace(fate.start, fate.end, fate.become)
                progress.advance(part.end - part.start)
                if summary.total_records - noted >= _NOTE_EVERY:
                    noted = summary.total_records
                    progress.note(f"{noted:,} lines")
        progress.note(f"all {quantity(summary.total_records, 'lines')}")
        require_sum("lines", repeated.lines, summary.total_records)
        if rewrite.changed:
            if backup:
                summary.backup = str(_keep_original(store.jsonl))
            rewrite.publish()


def _read(rewrite: Rewrite, starts: list[tuple[int, int]], progress: Progress) -> Iterator[Line]:
    """Read the lines, and list where parts begin: the number of lines and bytes before each."""
    progress.phase("read", rewrite.size, "B")
    for line in rewrite.lines():
        if line.offset - starts[-1][1] >= _PART_BYTES:
            progress.advance(line.offset - starts[-1][1])
            starts.append((line.number - 1, line.offset))
        yield line
        if line.number % _NOTE_EVERY == 0:
            progress.note(f"{line.number:,} lines")
    progress.advance(rewrite.size - starts[-1][1])


@dataclass
class _Fate:
    """The result for a line: a new record, or a reason; neither if it is a record already."""

    number: int
    start: int
    end: int
    reason: str | None = None
    become: bytes | None = None
    arrays: dict[str, str] = field(default_factory=dict)  # written, found or differing, by name


def _count(fate: _Fate, summary: MigrateSummary) -> None:
    """Add the result for a line to the summary."""
    summary.total_records += 1
    if fate.reason is not None:
        summary.unmigrated_records += 1
        summary.unmigrated_by_reason.setdefault(fate.reason, []).append(fate.number)
    elif fate.become is None:
        summary.already_migrated += 1
    else:
        summary.migrated_records += 1
        summary.jsonl_bytes_after += len(fate.become) - (fate.end - fate.start)
    for name, state in fate.arrays.items():
        if state == "differing":
            summary.arrays_differing.setdefault(name, []).append(fate.number)
        else:
            counts = summary.arrays_written if state == "written" else summary.arrays_found
            counts[name] = counts.get(name, 0) + 1


def _migrate_part(
    store: Store, dry_run: bool, repeated: Repeated, part: Part
) -> Iterator[tuple[int, list[_Fate]]]:
    """Migrate the lines of a part; the result comes when their arrays are on the disk."""
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
    """Find the arrays to write; one that exists is compared and never replaced."""
    missing, states = [], {}
    for component, array in become.arrays.items():
        path = store.array(component, become.image_id)
        existing = _existing(path, component)
        if existing is None:
            missing.append((path, array))
            states[component.name] = "written"
        else:
            same = existing.shape == array.shape and (existing == array).all()
            states[component.name] = "found" if same else "differing"
    fate.arrays = states  # only now: if one of them is broken, none of them counts
    return missing


def _existing(path: Path, component: Component) -> Array | None:
    try:
        return read_array(path, component)
    except BadArrayError as error:
        if error.reason == "missing":
            return None
        raise BadRecordError(f"{component.name}_{error.reason}") from None


def _keep_original(jsonl: Path) -> Path:
    """Keep the present file under another name, without replacing one that was kept before."""
    jsonl = target(jsonl)
    for end in chain([""], (f".{number}" for number in count(2))):
        backup = jsonl.with_name(jsonl.name + _BACKUP_SUFFIX + end)
        if not backup.exists():
            files.keep(jsonl, backup)
            files.sync_folder(backup.parent)
            break
        # A run that was killed here has kept it: as a link, or as a copy where there are no links.
        if backup.samefile(jsonl) or filecmp.cmp(backup, jsonl, shallow=False):
            break
    return backup
