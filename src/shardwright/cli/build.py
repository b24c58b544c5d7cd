"""images and captions straight to tar shards, without a store between.

Makes WebDataset tar shards of images and captions, on every GPU of the machine. It gives the same
samples as derive followed by pack, but writes only the shards: no loose files.

IMAGES are folders of images, or of tars of images as img2dataset writes them (KEY.jpg, png or webp
with KEY.txt, or KEY.json with a caption), or such tars. The keys, captions and JSON fields of tars
are kept; fields that Shardwright writes itself are overridden. Captions come from --captions, else
from name.txt beside name.jpg or KEY.txt, else from KEY.json.

First all images are listed and measured, and the plan is stored. Then each shard is made, and
committed when it is on the disk. To continue after an interruption, run the same command again; to
start over, add --overwrite. An image that fails is left out of its shard;
OUTPUT_DIR/.shardwright/ledger.jsonl lists each of them with the reason. With --limit, other
images take their place.

--append adds the images that are not in the shards yet. Shards that pack has made may be appended
to as well, if they have the same settings. --append and --overwrite go on with the --where, lists
and --split of the last run, and print them; with --overwrite, none drops one of them, for example
--where none. They read the captions file of the last build of these images, if none is given;
--captions none forgets it.

--from SHARDS --components NAME,... builds from shards instead of images: it makes new shards in
which these components are made again, or added, as the recipe and the flags now say, and copies all
others bit by bit. What is made from the caption needs nothing else; what is made from the picture
needs a picture member in SHARDS. Samples, order, buckets and split stay.

  shardwright build data/approved --output-dir data/shards --dry-run
  shardwright build data/approved --fit bucket --split val=5%
  shardwright build laion/00000.tar laion/00001.tar --recipe flux --device cuda:0,cuda:1
  shardwright build data/approved --append
  shardwright build --from data/shards --components t5 --recipe long.toml --output-dir data/long

exit status:
  0    done
  1    failed: there are shards already, made with other settings, the disk is full, 100 failures in
       a row; with --dry-run: the run would fail for one of these reasons but the last
  2    wrong usage, no images, no captions, no such model, or an interrupted build of another kind
  3    done, but some images failed
  11   another run is writing to the same folder
  12   the manifest or an index of earlier shards is damaged, or a shard is missing
  130  interrupted (terminated: 143, hung up: 129); run the same command to continue
"""

from __future__ import annotations

import argparse

import shardwright
from shardwright.building import BuildSummary
from shardwright.cli.derive import ENCODING, ENCODING_HINTS, bottleneck, read_dtypes, read_models
from shardwright.cli.options import (
    CLUSTER,
    IGNORE_SPACE,
    RECIPE,
    SELECTION,
    names,
    number,
    path,
    switch,
)
from shardwright.cli.pack import buckets_table, copies_note
from shardwright.cli.printing import by_reason, call, caption_lines, facts_lines, shown_lines, total
from shardwright.progress import duration, quantity, rate, size
from shardwright.text import shown

HINTS = {  # of flags that other tools have
    **ENCODING_HINTS,
    "--derived-dir": "no store is made; give the folder of the shards with --output-dir",
}


FLAGS = {
    "images": {
        **path("IMAGES", "folders or tars of images (data/approved, or as the recipe says)"),
        "nargs": "*",
    },
    "--from": path("SHARDS", "build from these shards instead of images; see --components"),
    "--components": names("COMPONENT", "with --from: make these again, and copy the others"),
    **RECIPE,
    "--output-dir --output -o": path(
        "DIR", "where the shards go (data/shards, or as the recipe says)"
    ),
    **ENCODING,
    **SELECTION,
    "--append": switch("add the images that have no sample yet, in new shards"),
    "--overwrite": switch("remove all old shards once the new ones are complete"),
    "--sha256": switch("also write a SHA256SUMS file for sha256sum -c"),
    **IGNORE_SPACE,
    **CLUSTER,
    "--gpus-per-worker": {
        **number("GPUs, or a part of one, that each worker gets (as the recipe says, else 1)"),
        "type": float,
    },
    "--dry-run": switch(
        "make the plan and some samples, say what all would take, and write nothing"
    ),
}


def run(options: argparse.Namespace) -> int:
    """Build, then print the summary."""
    options.images = options.images or None
    options.model, options.dtype = read_models(options.model), read_dtypes(options.dtype)
    summary = call(shardwright.build, options, describe)
    return 1 if summary.obstacle else 3 if summary.failed else 0


def describe(summary: BuildSummary) -> str:
    """Say what was built, what was left out, and what to do about it."""
    parts = [_headline(summary)]
    if summary.buckets:
        parts.append(buckets_table(summary.buckets, summary.parts, summary.dry_run))
    parts.append(_counts(summary))
    if summary.dry_run and summary.written_bytes and summary.free_bytes is not None:
        verdict = "enough" if summary.written_bytes <= summary.free_bytes else "NOT ENOUGH"
        needed, free = size(summary.written_bytes), size(summary.free_bytes)
        parts.append(f"space: about {needed} needed, {free} free: {verdict}")
    if summary.seconds_needed is not None:
        needed = duration(max(1, summary.seconds_needed))  # shorter times are noise
        parts.append(f"time: about {needed} on {summary.device}")
    if summary.obstacle is not None:
        parts.append(f"the run itself would stop: {shown_lines(summary.obstacle)}")
    if summary.ledger is not None:
        count = quantity(total(summary.left_out), "images")
        line = f"{count} left out; {shown(summary.ledger)} lists each with the reason"
        if summary.source is not None:
            line += ". To have them too, restore a copy of the shards or build from the images"
        elif summary.failed and "--limit" not in summary.not_chosen:  # else others took their place
            there = summary.written_samples or summary.already_there
            line += f". Fix what failed and run it again{' with --append' if there else ''}"
        parts.append(line)
    parts += _repeated_note(summary) + copies_note(summary.copies)
    if summary.index_commands:
        head = (
            "note: files that shardwright index wrote for other loaders belong to the earlier "
            "shards; to update them, run:"
        )
        parts.append("\n  ".join([head, *summary.index_commands]))
    return "\n\n".join(parts)


def _repeated_note(summary: BuildSummary) -> list[str]:
    """Say that images are in the shards twice now, and how to have them once."""
    if summary.under_other_ids is None:
        return []
    count = quantity(summary.under_other_ids.count, "images")
    was = "is in the shards twice now: it was there under another id"
    if summary.under_other_ids.count > 1:
        was = "are in the shards twice now: they were there under other ids"
    from shardwright.storage.place import place_at  # here, to keep the start light
    from shardwright.storage.urls import location

    place = place_at(location(summary.output_dir))
    how = "with --overwrite" if place.can_replace else "into another folder"
    return [
        f"note: {count} {was}. Ids come from file names, from paths below IMAGES (--ids path) or "
        "from the captions file (--ids captions), so keep these as they were. To have each image "
        f"once, build all of it again {how}"
    ]


def _headline(summary: BuildSummary) -> str:
    if not summary.written_samples:
        return _nothing(summary)
    verb = "would build" if summary.dry_run else "built"
    line = (
        f"{verb} {quantity(summary.written_samples, 'samples')} into "
        f"{quantity(summary.written_shards, 'shards')} "
        f"({'about ' * summary.dry_run}{size(summary.written_bytes)}) in "
        f"{shown(summary.output_dir)} on {summary.device}"
    )
    kept = quantity(summary.kept_shards, "shards")
    if summary.dry_run:
        return line + f"; {kept} finished before" * bool(summary.kept_shards) + _copied(summary)
    pace = rate(summary.written_samples / max(summary.seconds, 1e-3), "images")
    if summary.kept_shards:
        return f"{line} [{summary.seconds:.1f} s; {kept} finished before]{_copied(summary)}"
    idle = f", {bottleneck(summary)}" if summary.source is None else ""
    took = f"[{summary.seconds:.1f} s, {pace}{idle}]"
    return f"{line} {took}{_copied(summary)}"


def _copied(summary: BuildSummary) -> str:
    """Say what was copied with --from."""
    if summary.source is None:
        return ""
    made = ", ".join(name for name in summary.components if name not in summary.copied)
    copied = f"; copied {', '.join(summary.copied)}" if summary.copied else ""
    return f"\nfrom {shown(summary.source)}: made {made}{copied}"


def _nothing(summary: BuildSummary) -> str:
    if summary.already_there:
        there = quantity(summary.already_there, "samples")
        are = "is" if summary.already_there == 1 else "are"
        return f"nothing to build: {there} {are} already in {shown(summary.output_dir)}"
    verb = "would build" if summary.dry_run else "built"
    if summary.not_chosen:
        chosen = "no image is chosen and usable" if summary.left_out else "no image is chosen"
        return f"{verb} nothing: {chosen}"
    return f"{verb} nothing: all images are left out"


def _counts(summary: BuildSummary) -> str:
    lines = [
        f"inputs: {summary.inputs:,}",
        f"written_samples: {summary.written_samples:,}",
        f"already_there: {summary.already_there:,}",
    ]
    lines += [f"left_out: {total(summary.left_out):,}", *by_reason(summary.left_out)]
    if summary.not_chosen:
        lines += [f"not_chosen: {total(summary.not_chosen):,}", *by_reason(summary.not_chosen)]
    lines += facts_lines(summary) + caption_lines(summary.caption_rows)
    if summary.fit is not None and summary.written_samples:
        lines.append(f"fit {summary.fit}")
    if summary.under_other_ids is not None:
        lines += by_reason({"under_other_ids": summary.under_other_ids}, "")
    lines += by_reason(summary.unapplied_profiles, "")
    return "\n".join(lines)
