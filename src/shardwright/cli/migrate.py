"""convert Stage 1 to Stage 2: move inline arrays out of the JSONL.

Converts Stage 1 (a JSONL with inline arrays, for example dinov3_embedding) to Stage 2 (a store).
Each array goes to its own .npy file, its values rounded to the nearest float32 (dinov3) or
float16 (the others). The record gets its image_id, aspect_bucket and format_version; other fields
do not change.

An array file that exists is never replaced; if its values differ, that is reported. If an image
has several lines, only the last is migrated. A line that cannot be migrated stays in the JSONL as
it is and is reported with its number. A missing height or width is read from the image, if
image_path leads to it from the current folder.

The JSONL is replaced in one step at the end, and the original is kept beside it. After a kill,
run the same command again: the result is the same. A second run changes nothing.

  shardwright migrate --dry-run
  shardwright migrate --derived-dir data/derived

exit status:
  0    done, or nothing to migrate
  1    failed: the disk is full, or the JSONL changed meanwhile
  2    wrong usage, or the JSONL is missing
  3    done, but some lines could not be migrated
  11   another run is writing to the same store
  130  interrupted (terminated: 143, hung up: 129); run the same command to continue
"""

from __future__ import annotations

from shardwright.cli.options import STORE, WORKERS, switch
from shardwright.migrating import MigrateSummary
from shardwright.progress import quantity, size
from shardwright.text import shown

_LINES_LISTED = 10


FLAGS = {
    **STORE,
    "--no-backup": switch("do not keep the original (as FILE.stage1.bak)", "store_false"),
    "--dry-run": switch("report what would be done, and write nothing"),
    **WORKERS,
}


def exit_code(summary: MigrateSummary) -> int:
    """Give the exit code."""
    return 3 if summary.unmigrated_records else 0


def describe(summary: MigrateSummary) -> str:
    """Write for people what was migrated, what was not, and what to do about it."""
    lines = []
    if (recovered := summary.recovered) is not None:
        lines.append(
            f"merged {quantity(recovered.records, 'records')} of a run that was killed; dropped "
            f"{quantity(recovered.torn_lines, 'incomplete lines')}"
        )
    counts = ("total_records", "migrated_records", "already_migrated", "unmigrated_records")
    lines += [_headline(summary), *(f"{name}: {getattr(summary, name)}" for name in counts)]
    for reason, numbers in summary.unmigrated_by_reason.items():
        lines.append(f"  {reason}: {len(numbers)} ({_listed(numbers)})")
    for title in ("arrays_written", "arrays_found"):
        arrays = (f"{name} {count}" for name, count in getattr(summary, title).items())
        lines.append(f"{title}: {', '.join(arrays) or 0}")
    for name, numbers in summary.arrays_differing.items():
        lines.append(
            f"note: kept {quantity(len(numbers), f'{name} arrays')} with other values "
            f"({_listed(numbers)})"
        )
    if summary.backup is not None:
        lines.append(f"the original is kept as {shown(summary.backup)}")
    if summary.unmigrated_records:
        lines.append(
            "lines that could not be migrated are unchanged; fix or delete them, then run migrate "
            "again"
        )
    return "\n".join(lines)


def _headline(summary: MigrateSummary) -> str:
    if not summary.migrated_records:
        return "nothing to migrate"
    verb = "would migrate" if summary.dry_run else "migrated"
    return (
        f"{verb} {quantity(summary.migrated_records, 'records')} in {shown(summary.jsonl)}: "
        f"{size(summary.jsonl_bytes_before)} to {size(summary.jsonl_bytes_after)} "
        f"[{summary.seconds:.1f} s]"
    )


def _listed(numbers: list[int]) -> str:
    listed = ", ".join(str(number) for number in numbers[:_LINES_LISTED])
    hidden = len(numbers) - _LINES_LISTED
    more = f" and {hidden:,} more; --json lists all" if hidden > 0 else ""
    return f"line{'s' if len(numbers) > 1 else ''} {listed}{more}"
