"""Stage 1 to store: the arrays that a JSONL holds inline become ``.npy`` files.

The JSONL is read twice, once to find ids that are met more than once and once to migrate, and is
replaced in one step at the end. Until then it is as it was, so a run that was killed is simply
run again: the arrays it has written are found, compared and kept.
"""

from __future__ import annotations

import filecmp
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright import files, schema
from shardwright.errors import InputMissingError
from shardwright.outputs import require_writable
from shardwright.progress import Progress, quantity
from shardwright.schema import Component
from shardwright.store.folders import make_folders
from shardwright.store.journal import Recovered, journal_path, recover
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError, Line, counted
from shardwright.store.rewrite import Rewrite, target
from shardwright.store.stage1 import Repeated, Stage2, repeated_ids, to_stage2

if TYPE_CHECKING:
    from shardwright.store.arrays import Array

StrPath = str | os.PathLike[str]

_BACKUP_SUFFIX = ".stage1.bak"
_GROUP_ARRAYS = 512  # published together, so that many wait for the disk at once
_GROUP_BYTES = 1 << 25
_NOTE_EVERY = 5000


@dataclass
class MigrateSummary:
    """What ``migrate`` did, or under ``dry_run`` would do; lines are given by their numbers."""

    jsonl: str
    dry_run: bool
    total_records: int = 0
    migrated_records: int = 0
    already_migrated: int = 0
    unmigrated_records: int = 0
    unmigrated_by_reason: dict[str, list[int]] = field(default_factory=dict)
    arrays_written: dict[str, int] = field(default_factory=dict)  # by component
    arrays_found: dict[str, int] = field(default_factory=dict)  # that were there, and are the same
    arrays_differing: dict[str, list[int]] = field(default_factory=dict)  # were there; they stay
    jsonl_bytes_before: int = 0
    jsonl_bytes_after: int = 0
    backup: str | None = None
    recovered: Recovered | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        return asdict(self)


def migrate(
    *,
    derived_dir: StrPath = "data/derived",
    jsonl: StrPath | None = None,
    backup: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> MigrateSummary:
    """Turn a Stage 1 JSONL into a Stage 2 store, in place.

    Arguments are named as the flags of ``shardwright migrate``. A line that cannot be migrated
    stays as it is, and its number is in the summary under the reason.
    """
    started = time.monotonic()
    derived = Path(derived_dir)
    path = Path(jsonl) if jsonl is not None else derived / schema.JSONL_NAME
    if not path.is_file():
        raise InputMissingError(
            f"{path}: no such file; give the Stage 1 metadata with --jsonl, or its folder with "
            "--derived-dir"
        )
    for folder in (derived, path.parent):
        require_writable(folder)
    report = progress or Progress()
    try:
        if dry_run:
            if journal_path(path).exists():
                report.warn(f"{journal_path(path)}: not counted here; it is merged first")
            summary = _Migration(path, derived, True, report).run(backup)
        else:
            with files.lock(derived):
                make_folders(derived, path)
                recovered = recover(path)
                summary = _Migration(path, derived, False, report).run(backup)
                summary.recovered = recovered
    finally:
        report.close()
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


class _Migration:
    """One run over a JSONL: its books, and the arrays that wait to be written."""

    def __init__(self, jsonl: Path, derived: Path, dry_run: bool, progress: Progress) -> None:
        self.jsonl, self.derived, self.dry_run, self.progress = jsonl, derived, dry_run, progress
        self.summary = MigrateSummary(str(jsonl), dry_run)
        self.waiting: list[tuple[Path, Array]] = []
        self.waiting_bytes = 0

    def run(self, backup: bool) -> MigrateSummary:
        summary = self.summary
        with Rewrite(self.jsonl) as rewrite:
            summary.jsonl_bytes_before = summary.jsonl_bytes_after = rewrite.size
            repeated = repeated_ids(self._counted("read", rewrite))
            for line in self._counted("migrate", rewrite):
                try:
                    self._migrate(line, repeated, rewrite)
                except BadRecordError as error:
                    summary.unmigrated_records += 1
                    summary.unmigrated_by_reason.setdefault(error.reason, []).append(line.number)
            self._write_waiting()
            if rewrite.changed:
                if backup:
                    summary.backup = str(_keep_original(self.jsonl))
                rewrite.publish()
        return summary

    def _migrate(self, line: Line, repeated: Repeated, rewrite: Rewrite) -> None:
        """Migrate one line, or say by BadRecordError why it must stay as it is."""
        summary = self.summary
        summary.total_records += 1
        become = to_stage2(line, repeated)
        if become is None:
            summary.already_migrated += 1
            return
        assert line.data is not None
        for component, array in self._missing(line, become):
            self.waiting.append((self._path(component, become.image_id), array))
            self.waiting_bytes += array.nbytes
            _count(summary.arrays_written, component)
        summary.migrated_records += 1
        summary.jsonl_bytes_after += len(become.line) - len(line.data)
        if not self.dry_run:
            rewrite.replace(line, become.line)
        if len(self.waiting) >= _GROUP_ARRAYS or self.waiting_bytes >= _GROUP_BYTES:
            self._write_waiting()

    def _missing(self, line: Line, become: Stage2) -> list[tuple[Component, Array]]:
        """Find which arrays are to be written; one that is there is compared and never replaced."""
        there = [
            (component, array, self._existing(component, become.image_id))
            for component, array in become.arrays.items()
        ]
        missing = []
        for component, array, existing in there:
            if existing is None:
                missing.append((component, array))
            elif existing.shape == array.shape and (existing == array).all():
                _count(self.summary.arrays_found, component)
            else:
                lines = self.summary.arrays_differing.setdefault(component.name, [])
                lines.append(line.number)
        return missing

    def _existing(self, component: Component, image_id: str) -> Array | None:
        from shardwright.store.arrays import read_array  # here, to keep `import shardwright` light

        try:
            return read_array(self._path(component, image_id), component)
        except BadArrayError as error:
            if error.reason == "missing":
                return None
            raise BadRecordError(f"{component.name}_{error.reason}") from None

    def _path(self, component: Component, image_id: str) -> Path:
        return self.derived / component.folder / f"{image_id}.npy"

    def _write_waiting(self) -> None:
        from shardwright.store.arrays import write_arrays  # here, as above

        if not self.dry_run:
            write_arrays(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0

    def _counted(self, phase: str, rewrite: Rewrite) -> Iterator[Line]:
        """Read the lines and report how far it is."""
        self.progress.phase(phase, rewrite.size, "B")
        number = 0
        for line in counted(rewrite.lines(), rewrite.size, self.progress):
            yield line
            number = line.number
            if number % _NOTE_EVERY == 0:
                self.progress.note(f"{number:,} lines")
        self.progress.note(f"all {quantity(number, 'lines')}")


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


def _count(counts: dict[str, int], component: Component) -> None:
    counts[component.name] = counts.get(component.name, 0) + 1
