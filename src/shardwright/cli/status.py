"""``shardwright status``: what is ready, what is missing, what to do next."""

from __future__ import annotations

import argparse
import shutil
import sys
from itertools import starmap

import shardwright
from shardwright.cli.options import STORE, WORKERS, declare, path
from shardwright.cli.printing import call, facts_lines, listed, table
from shardwright.progress import quantity, size
from shardwright.reporting import PackedStatus, StoreStatus
from shardwright.text import shown

HELP = "show what is ready in a store, what is missing, and what to do next"
DESCRIPTION = """\
Reports the state of a store (Stage 2: records and arrays). For each component: how many records
have their array, and how many arrays are missing, invalid or without a record. For each bucket:
how many samples are ready. For all: the size of the store, and the exact size of its shards. Then
it names the next command. For that it also looks for samples that are packed already, in
--output-dir and in the folders directly below it. Reads the metadata, the header of every array
and the index of every shard. Changes nothing."""
EXAMPLE = "  shardwright status\n  shardwright status --derived-dir data/derived --json\n"
EXIT_STATUS = """\
exit status:
  0    done, whatever the state of the store
  1    failed
  2    wrong usage, or the store is missing
  130  interrupted (terminated: 143, hung up: 129)
"""
_BAR = 40  # characters for the largest bucket, where there is room
_SHORTEST_BAR = 10
_WIDTH = 120  # if the output is not a terminal
_LEFTOVERS_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    flags = {**STORE, "--output-dir": path("DIR", "the shards (%(default)s)"), **WORKERS}
    declare(parser, shardwright.status, flags)


def run(options: argparse.Namespace) -> int:
    """Print the status."""
    call(shardwright.status, options, describe)
    return 0


def describe(status: StoreStatus) -> str:
    """Write the status for people."""
    parts = [_records(status), _components(status)]
    if status.buckets:
        parts.append(_buckets(status))
    parts.append(_bytes(status))
    if status.unfinished:
        names, made = " and ".join(status.unfinished), max(status.unfinished.values())
        parts.append(f"recompute of {names}: {quantity(made, 'images')} so far, not in use yet")
    if status.failures_file is not None:
        failed = quantity(status.failures, "images")
        parts.append(f"could not be derived: {failed}, listed in {shown(status.failures_file)}")
    lines = facts_lines(status)
    if status.unknown_images:
        images = quantity(status.unknown_images, "images")
        lines.append(f"unknown: {images} encoded by an earlier version, or elsewhere")
    if lines:
        parts.append("\n".join(lines))
    if status.leftovers:
        parts.append(_leftovers(status))
    if status.packed:
        parts.append("\n".join(["packed:", *starmap(_packed, status.packed.items())]))
    parts.append(_next(status))
    return "\n\n".join(parts)


def _packed(folder: str, packed: PackedStatus) -> str:
    state = "; unfinished" if packed.unfinished else ""
    samples = quantity(packed.samples, "samples")
    return f"  {shown(folder)}: {samples}, of them {packed.ready:,} ready in the store{state}"


def _next(status: StoreStatus) -> str:
    command = "nothing to recommend" if status.next_command is None else status.next_command
    return f"next: {shown(command)}\n      ({shown(status.next_reason)})"


def _records(status: StoreStatus) -> str:
    total = quantity(status.total_records, "records")
    lines = [
        f"{shown(status.derived_dir)}: {total}, {status.ready_records:,} ready, "
        f"{status.skipped_incomplete:,} not ready [{status.seconds:.1f} s]"
    ]
    for reason, skipped in status.skipped_by_reason.items():
        lines.append(f"  {reason}: {skipped.count:,} (for example {shown(skipped.example)})")
    return "\n".join(lines)


def _components(status: StoreStatus) -> str:
    rows = [["component", "complete", "missing", "invalid", "orphaned", "bytes"]]
    for name, state in status.components.items():
        counts = (state.complete, state.missing, state.invalid, state.orphaned, state.bytes)
        rows.append([name, *(f"{count:,}" for count in counts)])
    return table(rows)


def _buckets(status: StoreStatus) -> str:
    rows = [["bucket", "ready", "not ready", "shard bytes"]]
    for name, bucket in status.buckets.items():
        counts = (bucket.ready, bucket.not_ready, bucket.shard_bytes)
        rows.append([name, *(f"{count:,}" for count in counts)])
    lines = table(rows).splitlines()
    room = shutil.get_terminal_size((_WIDTH, 24)).columns - len(lines[0]) - 2
    if room < _SHORTEST_BAR:
        return "\n".join(lines)
    both = [(bucket.ready, bucket.not_ready) for bucket in status.buckets.values()]
    bars = ["", *_bars(both, min(room, _BAR))]
    return "\n".join(f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True))


def _bars(counts: list[tuple[int, int]], longest: int) -> list[str]:
    """Draw a bar of ready and not ready for each bucket; the largest has full length."""
    blocks = (sys.stdout.encoding or "").lower().startswith("utf")
    full, light = ("█", "░") if blocks else ("#", ".")
    largest = max(ready + not_ready for ready, not_ready in counts)
    bars = []
    for ready, not_ready in counts:
        # Rounded up, so that a single sample is visible.
        length = -(-(ready + not_ready) * longest // largest)
        solid = ready * length // (ready + not_ready)
        bars.append(full * solid + light * (length - solid))
    return bars


def _bytes(status: StoreStatus) -> str:
    return (
        f"store:  {status.store_bytes:,} bytes ({size(status.store_bytes)}), of them "
        f"{status.jsonl_bytes:,} metadata\n"
        f"shards: {status.shard_bytes:,} bytes ({size(status.shard_bytes)}) predicted, in "
        f"{quantity(status.shards, 'shards')}"
    )


def _leftovers(status: StoreStatus) -> str:
    head = f"temporary files of a run that is interrupted or running: {len(status.leftovers):,}"
    return "\n".join([head, *listed(list(map(shown, status.leftovers)), _LEFTOVERS_LISTED)])
