"""``shardwright pack``: Stage 3."""

from __future__ import annotations

import argparse

import shardwright
from shardwright.cli.options import add_ignore_space, add_store, add_workers, names, path
from shardwright.cli.printing import progress, shown_lines, table, tell
from shardwright.packing import PackSummary
from shardwright.progress import quantity, size
from shardwright.text import shown

HELP = "Stage 3: pack a store into tar shards per aspect bucket"
DESCRIPTION = """\
Packs every ready sample of a Stage 2 store into WebDataset tar shards, a folder per aspect bucket.

A sample is ready when its record is complete and all its arrays are there and sound; the others are
skipped, and counted by reason. Samples go in the order of the JSONL: filtered by --bucket, then
shuffled, then limited, then grouped by bucket and cut into shards. The store is only read.
Memory: a few hundred bytes a record, so about 470 MB for 1,000,000 records."""
EXAMPLE = """\
  shardwright pack --dry-run --limit 100
  shardwright pack --limit 100 --shuffle --output-dir data/shards/trial
  shardwright pack --output-dir data/shards/train
"""
EXIT_STATUS = """\
exit status:
  0    done; also when nothing was ready
  1    failed: a shard already exists, shards there hold arrays made with other settings, the disk
       is full, an input changed meanwhile; with --dry-run: the run would stop for one of the
       first three
  2    wrong usage, shards that stay are of another JSONL, or the JSONL or a component's folder is
       missing
  11   another run is packing into the same folder
  12   the manifest or an index of earlier shards is damaged, or a shard is missing
  130  interrupted (terminated: 143, hung up: 129); whole shards are kept, and --resume goes on
"""
_SHARDS_LISTED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add_store(parser)
    add(
        "--output-dir",
        type=path,
        default="data/shards",
        metavar="DIR",
        help="for the shards (%(default)s)",
    )
    add(
        "--bucket",
        type=names,
        action="extend",
        default=[],
        metavar="WxH,...",
        help="pack these buckets only; may be given several times",
    )
    add("--shard-size", type=int, default=1000, metavar="N", help="samples a shard (%(default)s)")
    add("--limit", type=int, metavar="N", help="pack at most N samples in all")
    add("--shuffle", action="store_true", help="shuffle before limiting and grouping")
    add("--seed", type=int, default=0, metavar="N", help="of the shuffle (%(default)s)")
    add(
        "--overwrite",
        action="store_true",
        help="remove the old shards, all or those of --bucket, once the new ones are complete",
    )
    add("--resume", action="store_true", help="finish an interrupted run; whole shards are kept")
    add("--append", action="store_true", help="pack only new samples, into new shards")
    add(
        "--other-jsonl",
        action="store_true",
        help="pack into a folder whose shards were packed from another JSONL",
    )
    add("--sha256", action="store_true", help="also write a SHA256SUMS file for sha256sum -c")
    add_ignore_space(parser)
    add("--dry-run", action="store_true", help="say what would be written, and write nothing")
    add(
        "--progress-every",
        type=int,
        default=500,
        metavar="N",
        help="report every N ready records when not on a terminal (%(default)s)",
    )
    add_workers(parser)


def run(options: argparse.Namespace) -> int:
    """Pack, then print the summary."""
    summary = shardwright.pack(
        derived_dir=options.derived_dir,
        jsonl=options.jsonl,
        output_dir=options.output_dir,
        bucket=options.bucket,
        shard_size=options.shard_size,
        limit=options.limit,
        shuffle=options.shuffle,
        seed=options.seed,
        overwrite=options.overwrite,
        resume=options.resume,
        append=options.append,
        other_jsonl=options.other_jsonl,
        sha256=options.sha256,
        ignore_space=options.ignore_space,
        dry_run=options.dry_run,
        progress_every=options.progress_every,
        workers=options.workers,
        progress=progress(),
    )
    tell(summary, describe, as_json=options.json)
    return 1 if summary.obstacle else 0


def describe(summary: PackSummary) -> str:
    """Tell a person what was packed, what was not, and what to do about it."""
    parts = [_headline(summary)]
    if summary.buckets:
        parts.append(_buckets(summary))
    parts.append(_counts(summary))
    parts += _advice(summary)
    return "\n\n".join(parts)


def _headline(summary: PackSummary) -> str:
    if not summary.written_samples:
        if summary.kept_shards:
            kept = quantity(summary.kept_shards, "shards")
            return f"nothing left to pack: {kept} there and whole"
        if summary.ready_records:
            return "nothing to pack: no ready sample was chosen, or none is new"
        return "nothing to pack: no record is ready"
    verb = "would pack" if summary.dry_run else "packed"
    kept = f"; {quantity(summary.kept_shards, 'shards')} kept" if summary.kept_shards else ""
    return (
        f"{verb} {quantity(summary.written_samples, 'samples')} into "
        f"{quantity(summary.written_shards, 'shards')} ({size(summary.written_bytes)}) in "
        f"{shown(summary.output_dir)} [{summary.seconds:.1f} s]{kept}"
    )


def _buckets(summary: PackSummary) -> str:
    rows = [("bucket", "samples", "shards", "bytes")]
    for name, bucket in summary.buckets.items():
        rows.append((name, f"{bucket.samples:,}", f"{bucket.shards:,}", f"{bucket.bytes:,}"))
        if summary.dry_run:
            listed = list(bucket.shard_bytes.items())[:_SHARDS_LISTED]
            rows += [(f"  {shard}", "", "", f"{count:,}") for shard, count in listed]
            if hidden := len(bucket.shard_bytes) - len(listed):
                rows.append((f"  and {hidden:,} more (--json lists all)", "", "", ""))
    return table(rows)


def _counts(summary: PackSummary) -> str:
    lines = [
        f"total_records: {summary.total_records}",
        f"ready_records: {summary.ready_records}",
        f"skipped_incomplete: {summary.skipped_incomplete}",
    ]
    for reason, skipped in summary.skipped_by_reason.items():
        lines.append(f"  {reason}: {skipped.count} (such as {shown(skipped.example)})")
    lines += [
        f"written_samples: {summary.written_samples}",
        f"written_shards: {summary.written_shards}",
    ]
    return "\n".join(lines)


def _advice(summary: PackSummary) -> list[str]:
    advice = []
    off_shape = {name: b.off_shape for name, b in summary.buckets.items() if b.off_shape}
    if off_shape:
        listed = ", ".join(f"{count:,} in {name}" for name, count in off_shape.items())
        advice.append(
            f"note: some latents are not of their bucket's shape ({listed}), so they do not stack "
            "in a batch; to change that, run the following, then this pack with --overwrite:\n"
            f"  {summary.derive_command}"
        )
    if summary.journal is not None:
        advice.append(
            f"note: {shown(summary.journal)} holds records of an interrupted run, which are not "
            f"packed; to merge them, run:\n  {summary.derive_command}"
        )
    if summary.unopened_records:
        advice.append(
            f"note: {quantity(summary.unopened_records, 'records')} already packed, or left out by "
            "--limit or --bucket; not checked"
        )
    if summary.dry_run and summary.written_bytes:
        verdict = "enough" if summary.written_bytes <= summary.free_bytes else "NOT ENOUGH"
        advice.append(
            f"space: {summary.written_bytes:,} bytes needed, {summary.free_bytes:,} free: {verdict}"
        )
    if summary.obstacle is not None:
        advice.append(f"the run itself would stop: {shown_lines(summary.obstacle)}")
    advice += _gone("remove", summary.removed_shards, "", summary.dry_run)
    same = " with new ones of the same name"
    advice += _gone("replace", summary.replaced_shards, same, summary.dry_run)
    return advice


def _gone(verb: str, names: list[str], how: str, dry_run: bool) -> list[str]:
    """List old shards that went, or would go."""
    if not names:
        return []
    what = f"would {verb}" if dry_run else f"{verb}d"
    lines = [f"note: {what} {quantity(len(names), 'shards')}{how}:"]
    lines += [f"  {name}" for name in names[:_SHARDS_LISTED]]
    if len(names) > _SHARDS_LISTED:
        lines.append(f"  and {len(names) - _SHARDS_LISTED:,} more (--json lists all)")
    return ["\n".join(lines)]
