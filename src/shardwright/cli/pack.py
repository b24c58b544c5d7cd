"""Stage 3: pack a store into tar shards per aspect bucket.

Packs every ready sample of a Stage 2 store into WebDataset tar shards, a folder per aspect bucket.

A sample is ready when its record is complete and all its arrays are there and valid; the others
are skipped, and counted by reason. Samples keep the order of the JSONL: filtered by --bucket, lists
and --where, then shuffled, then limited, then grouped by bucket and cut into shards. The store is
only read.

--split val=5% packs into OUTPUT_DIR/train and OUTPUT_DIR/val. A hash of the id decides, so a sample
stays in its part when others are added. The split, the conditions and the lists are those of all
shards of a folder: later runs go on with them and print them, and only --sync or a complete
--overwrite changes the conditions and lists. --where none, --ids-file none and --exclude-ids-file
none drop them, --overwrite --split none drops a split. Unlike these, --limit, --bucket, --shuffle,
--seed and --shard-size are as given; what differs from the last run is listed before it begins.

--sync follows a store that has changed, with all settings of the last run unless given now: a
--limit of that run stays in force until a higher one is given, and so does --shuffle. It packs new
samples of all buckets that were packed before. Shards with changed, removed or no longer selected
samples are written again, what is new goes to new shards, and the others are not touched. --append
refuses while packed samples are outdated. Both compare records by checksum, and arrays only where
the time of a file is not before the shard's: after a copy or chmod of the store, all arrays are
read. Shards copied without their times hide a changed array, which verify --against finds. A folder
belongs to one store, or copies of it; only --overwrite replaces its shards by those of another.

What the recipe's max_upscale, max_crop, min_side or max_tokens_lost leaves out is not packed.

--where compares fields of the record (caption, width, height, bucket, image_id and your columns;
other names in `backticks`), or enlarged, cropped, tokens and tokens_lost, with numbers, "text",
true, false or null: = != < <= > >= in ("a", "b"), and ~ !~ for regular expressions, joined by and,
or, not and parentheses.

Memory: a few hundred bytes per record, about 470 MB for 1,000,000 records.

  shardwright pack --dry-run --limit 100
  shardwright pack --limit 100 --shuffle --output-dir data/shards/trial
  shardwright pack --split val=5%
  shardwright pack --where 'width >= 512 and caption ~ "cat"' --exclude-ids-file bad.txt
  shardwright pack --sync --dry-run

exit status:
  0    done; also when nothing was ready
  1    failed: a shard already exists, its arrays were made with other settings, packed samples are
       outdated or not ready, the disk is full, or an input changed; with --dry-run: the run would
       fail for one of these reasons but the last
  2    wrong usage, existing shards are of another store, JSONL or split, or the JSONL, a list or a
       component's folder is missing
  11   another run is packing into the same folder
  12   the manifest or an index of earlier shards is damaged, or a shard is missing
  130  interrupted (terminated: 143, hung up: 129); finished shards are kept, --resume continues
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shardwright.cli.options import (
    CLUSTER,
    IGNORE_SPACE,
    SELECTION,
    STORE,
    WORKERS,
    number,
    path,
    switch,
)
from shardwright.cli.printing import by_reason, listed, shown_lines, table, total
from shardwright.packing import BucketSummary, PackSummary
from shardwright.packing.summary import PartSummary, SyncSummary
from shardwright.progress import quantity, size
from shardwright.text import shown

if TYPE_CHECKING:
    from shardwright.comparing.parts import InParts

_SHARDS_LISTED = 10

_STORE = "give the store without a flag, or with --derived-dir"
_IMAGES = "pack reads a store; derive makes one of images, and build makes shards without one"
_FORCE = "to replace the shards that are there, give --overwrite; to add what is new, --append"
_SIZE = "give --shard-size N"
HINTS = {  # of flags that other tools have
    **dict.fromkeys(("--store", "--input", "--input-dir", "-i"), _STORE),
    **dict.fromkeys(("--images", "--captions", "--encoders", "--fit"), _IMAGES),
    **dict.fromkeys(("--force", "-f"), _FORCE),
    **dict.fromkeys(("--maxcount", "--samples-per-shard"), _SIZE),
    "--filter": "give --where EXPRESSION",
}


FLAGS = {
    "store": path("STORE", "the store, as --derived-dir"),
    **STORE,
    "--output-dir --output -o": path(
        "DIR", "where the shards go (data/shards, or as the recipe says)"
    ),
    **SELECTION,
    "--overwrite": switch(
        "remove the old shards, all or those of --bucket, once the new ones are complete"
    ),
    "--resume": switch("finish an interrupted run; finished shards are kept"),
    "--append": switch("pack only new samples, into new shards"),
    "--sync": switch("update shards whose samples have changed or gone, and pack what is new"),
    "--sha256": switch("also write a SHA256SUMS file for sha256sum -c"),
    **IGNORE_SPACE,
    "--dry-run": switch("show what would be written, and write nothing"),
    "--progress-every": number("report every N ready records when not on a terminal (%(default)s)"),
    **WORKERS,
    **CLUSTER,
}


def exit_code(summary: PackSummary) -> int:
    """Give the exit code."""
    return 1 if summary.obstacle else 0


def describe(summary: PackSummary) -> str:
    """Write for people what was packed, what was not, and what to do about it."""
    buckets, synced = [], summary.synced
    if synced is not None and (summary.written_shards or summary.removed_shards):
        then = buckets_table(synced.buckets, synced.parts, summary.dry_run)
        buckets = [f"after the sync:\n{then}"]
    elif summary.buckets:
        buckets = [buckets_table(summary.buckets, summary.parts, summary.dry_run)]
    return "\n\n".join([_headline(summary), *buckets, _counts(summary), *_advice(summary)])


def _headline(summary: PackSummary) -> str:
    if summary.synced is not None:
        return _synced(summary, summary.synced)
    if not summary.written_samples:
        if summary.kept_shards:
            kept = quantity(summary.kept_shards, "shards")
            return f"nothing left to pack: {kept} already complete"
        if summary.ready_records:
            return "nothing to pack: no ready sample is selected, or none is new"
        return "nothing to pack: no record is ready"
    verb = "would pack" if summary.dry_run else "packed"
    kept = f"; {quantity(summary.kept_shards, 'shards')} kept" if summary.kept_shards else ""
    return (
        f"{verb} {quantity(summary.written_samples, 'samples')} into "
        f"{quantity(summary.written_shards, 'shards')} ({size(summary.written_bytes)}) in "
        f"{shown(summary.output_dir)} [{summary.seconds:.1f} s]{kept}"
    )


def _synced(summary: PackSummary, synced: SyncSummary) -> str:
    if not (summary.written_shards or summary.removed_shards):
        shards = quantity(synced.untouched_shards, "shards")
        return (
            f"nothing to sync: {shards} up to date"
            + synced.new_settings * "; new settings recorded"
        )
    new = quantity(synced.new_samples, "new samples")
    return (
        f"{'would sync' if summary.dry_run else 'synced'} {shown(summary.output_dir)} with the "
        f"store: {total(synced.changed):,} changed, {total(synced.removed):,} removed, {new}; "
        f"{quantity(summary.written_shards, 'shards')} written ({size(summary.written_bytes)}), "
        f"{len(summary.removed_shards):,} removed, "
        f"{synced.untouched_shards + summary.kept_shards:,} kept [{summary.seconds:.1f} s]"
    )


def buckets_table(
    buckets: Mapping[str, BucketSummary], parts: Mapping[str, PartSummary], dry_run: bool
) -> str:
    """List what is in each bucket, by part if there is a split."""
    rows = [("part" if parts else "bucket", "samples", "shards", "bytes")]
    for name, part in parts.items():
        rows.append(_row(name, part))
        rows += _bucket_rows(part.buckets, dry_run, "  ")
    if not parts:
        rows += _bucket_rows(buckets, dry_run)
    return table(rows)


def _bucket_rows(
    buckets: Mapping[str, BucketSummary], dry_run: bool, indent: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    for name, bucket in buckets.items():
        yield _row(indent + name, bucket)
        if dry_run:
            first = list(bucket.shard_bytes.items())[:_SHARDS_LISTED]
            yield from ((f"{indent}  {shard}", "", "", f"{count:,}") for shard, count in first)
            if hidden := len(bucket.shard_bytes) - len(first):
                yield f"{indent}  and {hidden:,} more (--json lists all)", "", "", ""


def _row(name: str, counted: BucketSummary | PartSummary) -> tuple[str, str, str, str]:
    return name, f"{counted.samples:,}", f"{counted.shards:,}", f"{counted.bytes:,}"


def _counts(summary: PackSummary) -> str:
    lines = [
        f"total_records: {summary.total_records}",
        f"ready_records: {summary.ready_records}",
        f"skipped_incomplete: {summary.skipped_incomplete}",
    ]
    lines += by_reason(summary.skipped_by_reason)
    if summary.left_out:
        lines += [f"left_out: {total(summary.left_out)}", *by_reason(summary.left_out)]
    if summary.synced is not None:
        for name, counts in (
            ("changed_samples", summary.synced.changed),
            ("removed_samples", summary.synced.removed),
        ):
            lines += [f"{name}: {total(counts)}", *by_reason(counts)]
        lines.append(f"new_samples: {summary.synced.new_samples}")
    lines.append(f"written_samples: {summary.written_samples}")
    lines.append(f"written_shards: {summary.written_shards}")
    return "\n".join(lines)


def _advice(summary: PackSummary) -> list[str]:
    advice = []
    off_shape = {name: b.off_shape for name, b in summary.buckets.items() if b.off_shape}
    if off_shape:
        counts = ", ".join(f"{count:,} in {name}" for name, count in off_shape.items())
        run = "run this, then pack to another --output-dir with the same flags"
        run = "first run" if summary.dry_run else "run" if summary.pack_command else run
        advice.append(
            f"note: some latents do not have their bucket's shape ({counts}), so they do not stack "
            f"in a batch; to change that, {run}:\n  {summary.derive_command}"
            + (f"\n  {summary.pack_command}" if summary.pack_command else "")
        )
    if summary.journal is not None:
        advice.append(
            f"note: {shown(summary.journal)} holds records of an interrupted run, which are not "
            f"packed; to merge them, run:\n  {summary.derive_command}"
        )
    if summary.unopened_records and summary.synced is None:
        left_out = total(summary.left_out)
        packed = summary.unopened_records - left_out - summary.over_limit
        why = {"already packed": packed, "left out": left_out, "over --limit": summary.over_limit}
        counts = ", ".join(f"{count:,} {what}" for what, count in why.items() if count)
        unopened = quantity(summary.unopened_records, "ready records")
        advice.append(f"note: {unopened} not checked: {counts}")
    if summary.dry_run and summary.written_bytes and summary.free_bytes is not None:
        verdict = "enough" if summary.written_bytes <= summary.free_bytes else "NOT ENOUGH"
        advice.append(
            f"space: {summary.written_bytes:,} bytes needed, {summary.free_bytes:,} free: {verdict}"
        )
    if summary.obstacle is not None:
        advice.append(f"the run itself would stop: {shown_lines(summary.obstacle)}")
    if summary.synced is not None:
        moves = [f"{old} becomes {new}" for old, new in summary.synced.moved_shards.items()]
        last = ", because others became empty and numbers have no gaps"
        advice += _gone("renumber", moves, last, summary.dry_run)
    advice += _gone("remove", summary.removed_shards, "", summary.dry_run)
    same = " with new ones of the same name"
    advice += _gone("replace", summary.replaced_shards, same, summary.dry_run)
    advice += copies_note(summary.copies, summary.dry_run)
    if summary.index_commands:
        are = "would be" if summary.dry_run else "are"
        head = (
            f"note: files that shardwright index wrote for other loaders {are} of the shards "
            "before; to update them, run:"
        )
        advice.append("\n  ".join([head, *summary.index_commands]))
    return advice


def copies_note(found: InParts | None, dry_run: bool = False) -> list[str]:
    """List the copies in several parts of a split, and how to keep them in one."""
    if found is None:
        return []
    notes = []
    near = f"near-duplicates by {found.vector} (cosine {found.least} or more)"
    kinds = {"identical files": found.identical, near: found.near}
    lines = [
        f"  {kind}: {quantity(len(each), 'groups')} (for example {shown(str(each[0]))})"
        for kind, each in kinds.items()
        if each
    ]
    if lines:
        are = "would be" if dry_run else "are"
        head = f"note: copies of one image {are} in several parts of the split:"
        notes.append("\n".join([head, *lines, shown(found.fix)]))
    if found.not_searched is not None:
        what = "near-duplicates in several parts were not searched"
        notes.append(f"note: {what}: {shown(found.not_searched)}")
    return notes


def _gone(verb: str, names: list[str], how: str, dry_run: bool) -> list[str]:
    """List old shards that were removed or replaced, or would be."""
    if not names:
        return []
    what = f"would {verb}" if dry_run else f"{verb.removesuffix('e')}ed"
    head = f"note: {what} {quantity(len(names), 'shards')}{how}:"
    return ["\n".join([head, *listed(names, _SHARDS_LISTED)])]
