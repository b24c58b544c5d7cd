"""show what is ready in a store, what is missing, and what to do next.

Reports the state of a store (Stage 2: records and arrays). For each component: how many records
have their array, and how many arrays are missing, invalid or without a record. For each bucket:
how many samples are ready. For all: the size of the store, and the exact size of its shards. Then
it names the next command. For that it also looks for samples that are packed already, in
--output-dir and in the folders directly below it. Reads the metadata, the header of every array
and the index of every shard. Changes nothing.

--export writes everything on record to a table, for pandas, DuckDB or a spreadsheet: a row for each
image with its record, its file, what its arrays do not show of it, and whether it is ready.

  shardwright status
  shardwright status data/derived --json
  shardwright status --export images.parquet

exit status:
  0    done, whatever the state of the store
  1    failed
  2    wrong usage, or the store is missing
  130  interrupted (terminated: 143, hung up: 129)
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import starmap

from shardwright.cli.options import STORE, WORKERS, path
from shardwright.cli.printing import by_reason, change_lines, decoding_lines, listed, table
from shardwright.progress import quantity, size
from shardwright.reporting import Outlook, PackedStatus, StoreStatus
from shardwright.text import near, shown

_BAR = 40  # characters for the largest bucket, where there is room
_SHORTEST_BAR = 10
_WIDTH = 120  # if the output is not a terminal
_LISTED = 10


FLAGS = {
    "path": path("PATH", "the store, as --derived-dir"),
    **STORE,
    "--output-dir": path("DIR", "the shards (data/shards, or as the recipe says)"),
    "--export": path("FILE", "write a table with a row for each image: .parquet, .csv or .jsonl"),
    **WORKERS,
}


def describe(status: StoreStatus) -> str:
    """Write the status for people."""
    parts = [[_headline(status)], _components(status), _buckets(status), _sizes(status)]
    parts[0] += by_reason(status.skipped_by_reason)
    if status.unfinished:
        names, made = " and ".join(status.unfinished), max(status.unfinished.values())
        parts.append([f"new arrays of {names}: {quantity(made, 'images')} so far, not in use yet"])
    if status.failures_file is not None:
        failed = quantity(status.failures, "images")
        parts.append([f"could not be derived: {failed}, listed in {shown(status.failures_file)}"])
    if status.attention:
        parts.append(["needs attention:", *_attention(status)])
    parts.append(decoding_lines(status.quality))
    if status.unknown_images:
        images = quantity(status.unknown_images, "images")
        parts[-1].append(f"unknown: {images} encoded by an earlier version, or elsewhere")
    if status.update is None:
        parts.append(change_lines(status))
    else:
        several = bool(status.further_updates)
        parts += [_update(each, several) for each in (status.update, *status.further_updates)]
    if status.leftovers:
        head = f"temporary files of a run that is interrupted or running: {len(status.leftovers):,}"
        parts.append([head, *listed(list(map(shown, status.leftovers)), _LISTED)])
    if status.packed:
        parts.append(["packed:", *starmap(_packed, status.packed.items())])
    if status.exported is not None:
        rows = quantity(status.exported.rows, "rows")
        parts.append([f"exported: {rows} in {shown(status.exported.file)}"])
    if status.next_command is None:
        parts.append([f"next: {shown(status.next_reason)}"])
    else:
        parts.append(
            [f"next: {shown(status.next_command)}", f"      ({shown(status.next_reason)})"]
        )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _headline(status: StoreStatus) -> str:
    return (
        f"{shown(status.derived_dir)}: {quantity(status.total_records, 'records')}, "
        f"{status.ready_records:,} ready, {status.skipped_incomplete:,} not ready "
        f"[{status.seconds:.1f} s]"
    )


def _attention(status: StoreStatus) -> Iterator[str]:
    from shardwright.store.commands import command  # here, for a quick --help

    for each in status.attention:
        yield f"  {each.text} (for example {shown(each.example)})"
    yield f"  to see them, run {shown(command('look', status.derived_dir))}"


def _update(update: Outlook, several: bool) -> list[str]:
    """Say what an update would do, if anything."""
    would = {
        "derive {} (for example {})": ("new images", update.new),
        "derive {} again (for example {})": ("changed images", update.changed),
        "encode {} again (for example of {})": ("changed captions", update.captions),
        "update the record of {} (for example {})": ("images", update.columns),
        "rename {} (for example {})": ("images", update.renamed),
        "remove {} with --prune (for example {})": ("gone images", update.gone),
    }
    lines = [
        "  " + words.format(quantity(found.count, unit), near(found.example))
        for words, (unit, found) in would.items()
        if found.count
    ]
    if update.prune_command is not None:
        kept, folder = update.undecided, near(update.images)
        one = len(kept) == 1
        lines.append(
            f"  keep {quantity(len(kept), 'images')} that {'is' if one else 'are'} not found below "
            f"{folder}, and may not have been there:"
        )
        lines += (f"  {line}" for line in listed([near(path) for path in kept], _LISTED))
        them = "its record and arrays" if one else "their records and arrays"
        lines.append(f"    to remove {them}, run {shown(update.prune_command)}")
    where = f"{near(update.images)} " if several else ""
    lines = [f"derive {where}--update would:", *lines] if lines else []
    if update.captions_problem is not None:
        problem = shown(update.captions_problem)
        lines.insert(0, f"captions not read (derive would stop): {problem}")
    elif update.captions_file is not None:
        lines.insert(0, f"captions: {near(update.captions_file)}")
    return lines


def _packed(folder: str, packed: PackedStatus) -> str:
    state = f", {packed.outdated:,} outdated" if packed.outdated else ""
    state += "; unfinished" if packed.unfinished else ""
    samples = quantity(packed.samples, "samples")
    ready = packed.other or f"of them {packed.ready:,} ready in the store"
    return f"  {shown(folder)}: {samples}, {ready}{state}"


def _components(status: StoreStatus) -> list[str]:
    rows = [["component", "complete", "missing", "invalid", "orphaned", "bytes"]]
    for name, state in status.components.items():
        counts = (state.complete, state.missing, state.invalid, state.orphaned, state.bytes)
        rows.append([name, *(f"{count:,}" for count in counts)])
    return table(rows).splitlines()


def _buckets(status: StoreStatus) -> list[str]:
    """Count the samples of each bucket, with a bar; the largest has full length."""
    if not status.buckets:
        return []
    buckets = status.buckets.values()
    rows = [["bucket", "ready", "not ready", "shard bytes"]]
    for name, bucket in status.buckets.items():
        rows.append([name, f"{bucket.ready:,}", f"{bucket.not_ready:,}", f"{bucket.shard_bytes:,}"])
    lines = table(rows).splitlines()
    longest = min(shutil.get_terminal_size((_WIDTH, 24)).columns - len(lines[0]) - 2, _BAR)
    if longest >= _SHORTEST_BAR:
        blocks = (sys.stdout.encoding or "").lower().startswith("utf")
        full, light = ("█", "░") if blocks else ("#", ".")
        largest = max(bucket.ready + bucket.not_ready for bucket in buckets)
        for row, bucket in enumerate(buckets, 1):
            total = bucket.ready + bucket.not_ready
            length = -(-total * longest // largest)  # rounded up, so that one sample is visible
            solid = bucket.ready * length // total
            lines[row] += f"  {full * solid}{light * (length - solid)}"
    return lines


def _sizes(status: StoreStatus) -> list[str]:
    return [
        f"store:  {status.store_bytes:,} bytes ({size(status.store_bytes)}), of them "
        f"{status.jsonl_bytes:,} metadata",
        f"shards: {status.shard_bytes:,} bytes ({size(status.shard_bytes)}) predicted, in "
        f"{quantity(status.shards, 'shards')}",
    ]
