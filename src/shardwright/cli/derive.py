"""Stage 2: make the arrays and records of a folder of images and captions.

Makes the missing arrays and records of the images below a folder, one array per component.

Captions come from --captions, else from the record in the store, else from name.txt beside
name.jpg. --recompute takes name.txt before the record, if it makes all arrays of the caption; so
does --update, unless the caption on record came from --captions. The store remembers the file of
--captions, for later runs and for status; --captions none forgets it. An image's id is its file
name without the extension, unless --ids says otherwise. Existing arrays and records are left as
they are: after an interruption, or with new images, run the same command again. Hidden files and
links to folders are skipped.

--update makes again exactly what was made from images or captions that have changed. A renamed
image (its old path is gone, and no other image has its content) keeps its arrays. --prune removes
the records and arrays of images that were below IMAGES and are gone, after listing them; see them
first with --dry-run. A moved folder is recognised by the images in it. Others that are not found
are listed with the command that removes them too, by --prune-below.

Images that cannot be derived are listed with the reason in failures.jsonl below
DERIVED_DIR/.shardwright. The settings that arrays were made with are in provenance.json beside
it; a run with other settings stops before any work. --recompute makes new arrays beside the old
ones, which stay in use until all are made. To try it without models: --encoders sketch.

  shardwright derive data/approved --dry-run
  shardwright derive data/approved --captions captions.jsonl --fit bucket --trial 4
  shardwright derive data/approved --update --prune --dry-run
  shardwright derive --components vae --batch-size 2 --model vae=/models/FLUX.1-dev

exit status:
  0    done
  1    failed: other settings than before, the disk is full, 100 failures in a row
  2    wrong usage, no images, no captions, or no such model
  3    done, but some images failed
  11   another run is writing to the same store
  130  interrupted (terminated: 143, hung up: 129); run the same command to continue
"""

from __future__ import annotations

import argparse

import shardwright
from shardwright.building import BuildSummary
from shardwright.cli.options import IGNORE_SPACE, STORE, names, number, path, switch, text
from shardwright.cli.printing import (
    by_reason,
    call,
    caption_lines,
    change_lines,
    facts_lines,
    shown_lines,
    table,
    total,
)
from shardwright.deriving import DeriveSummary
from shardwright.deriving.summary import Trial
from shardwright.errors import UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.progress import duration, quantity, rate, size
from shardwright.text import near, shown

_IDLE = 0.5  # of the encoders' time: above, something else is the bottleneck
_BUSY = 0.5  # of the cores' time: above, that is decoding, and not waiting for a disk or a network


ENCODING = {
    "--captions": path(
        "FILE",
        "JSONL, CSV, TSV or Parquet with image_path or file_name, and caption, text or prompt",
    ),
    "--encoders": text(
        "SET",
        "pretrained, or sketch: no models, for trying things out (as before, else pretrained)",
        *("pretrained", "sketch"),
    ),
    "--model": {
        **text("COMPONENT=ID", "another model: a hub id or a folder; may be given several times"),
        "action": "append",
    },
    "--fit": text(
        "HOW",
        "original: latents of the picture's size; bucket: resized to cover the bucket, and "
        "cropped at the centre (as the recipe says, else as before, else original)",
        *("original", "bucket"),
    ),
    "--decode": text(
        "HOW",
        "exact; or fast: JPEG files at a smaller scale, where that is enough (as the recipe "
        "says, else as before, else exact)",
        *("exact", "fast"),
    ),
    "--ids": text(
        "HOW",
        "where the ids of new images come from: name, the file name without its extension; "
        "path, the path below IMAGES; captions, the image_id in --captions (as the recipe "
        "says, else as before, else name)",
        *("name", "path", "captions"),
    ),
    "--device": text(
        "DEVICE",
        "auto: every GPU; cpu, cuda, cuda:N or mps; several with commas, cuda:0,cuda:2; or cpu:N "
        "for N processes (%(default)s)",
        *("auto", "cpu", "cuda", "mps"),
    ),
    "--dtype": {
        **text(
            "[COMPONENT=]DTYPE",
            "the precision of the model: float32, tf32 or bfloat16, for all or for one "
            "component; may be given several times (as before, else what suits the device and "
            "the encoder)",
            *("float32", "tf32", "bfloat16"),
        ),
        "action": "append",
    },
    "--batch-size": number(
        "images encoded at a time; halved when a device runs out of memory (8, or fewer where "
        "memory is short)"
    ),
    "--compile": switch(
        "try at the start what makes each model faster (torch.compile, channels_last), and use "
        "it where that gains 5 %% or more; the trying takes some minutes"
    ),
}


ENCODING_HINTS = {
    "--resume": "to continue after an interruption, run the same command again",
    "--resolution": "the recipe has it; in the file that shardwright recipe --init makes, write "
    "resolution = N in place of buckets = [...], and give that file with --recipe",
    "--workers": "all cores are used; for N processes that encode on the CPU, give --device cpu:N",
}
_STORE = "derive makes a store, in --derived-dir; for shards, use build, or pack the store after it"
HINTS = {  # of flags that other commands have
    "--output-dir": _STORE,
    "--output": _STORE,
    "-o": _STORE,
    **ENCODING_HINTS,
}


FLAGS = {
    "images": path("IMAGES", "(data/approved, or as the recipe says)"),
    **STORE,
    **ENCODING,
    "--components": names("COMPONENT", "make only these, for example vae"),
    "--recompute": names(
        "COMPONENT", "make all arrays of these again; none: discard an unfinished recompute"
    ),
    "--update": switch(
        "make again what was made from images or captions that have changed, and keep the "
        "arrays of renamed images"
    ),
    "--prune": switch("remove the records and arrays of images below IMAGES that no longer exist"),
    "--prune-below": path(
        "DIR", "--prune, also of images that were below DIR and are not found any more"
    ),
    "--drop-failed": switch(
        "finish a recompute without the images that failed; their old arrays are deleted"
    ),
    "--trial": number(
        "derive only this many images, and say about how long and how much room the others need"
    ),
    **IGNORE_SPACE,
    "--dry-run": switch("say what would be made, and make nothing"),
}


def run(options: argparse.Namespace) -> int:
    """Derive, then print the summary."""
    options.model, options.dtype = read_models(options.model), read_dtypes(options.dtype)
    summary = call(shardwright.derive, options, describe)
    return 1 if summary.obstacle else 3 if summary.failed else 0


def describe(summary: DeriveSummary) -> str:
    """Say what was made, what failed, and what to do about it."""
    parts = [_headline(summary), _components(summary), _counts(summary)]
    if summary.dry_run and summary.bytes_needed:
        verdict = "enough" if summary.bytes_needed <= summary.free_bytes else "NOT ENOUGH"
        parts.append(
            f"space: about {summary.bytes_needed:,} bytes needed, {summary.free_bytes:,} free: "
            f"{verdict}"
        )
    if summary.trial is not None:
        parts.append(_forecast(summary, summary.trial))
    if summary.obstacle is not None:
        parts.append(f"the run itself would stop: {shown_lines(summary.obstacle)}")
    if summary.swapped:
        new = f"recomputed: the new {' and '.join(summary.swapped)} arrays are in use"
        for name, part in summary.components.items():
            if part.not_recomputed:
                new += f"; {quantity(part.not_recomputed, f'old {name} arrays')} deleted"
        parts.append(new)
    if summary.unfinished and not (summary.trial and summary.trial.left):
        count, name = max((p.not_recomputed, name) for name, p in summary.components.items())
        have, array, them = ("has", "array", "it") if count == 1 else ("have", "arrays", "them")
        parts.append(
            f"{quantity(count, 'images')} {have} no new {name} {array}, so the old ones stay in "
            f"use. Fix {them} and rerun, or add --drop-failed to continue without {them}"
        )
    if summary.failed and not summary.dry_run:
        log = f"{shown(summary.derived_dir)}/{STATE_FOLDER}/failures.jsonl"
        images = quantity(summary.failed, "images")
        parts.append(
            f"{images} failed; see {log}. Fix {'it' if summary.failed == 1 else 'these'} and rerun"
        )
    return "\n\n".join(parts)


def read_models(texts: list[str] | None) -> dict[str, str]:
    """Read ``--model``, which may be given several times."""
    named = {}
    for each in texts or []:
        component, _, named[component] = each.partition("=")
        if not named[component]:
            fix = "write COMPONENT=ID, for example vae=FOLDER"
            raise UsageError(f"--model {each}: no model", fix=fix)
    return named


def read_dtypes(texts: list[str] | None) -> str | dict[str, str] | None:
    """Read ``--dtype``: one precision for all, or one for each component that is named."""
    texts = texts or []
    if len(texts) <= 1 and not any("=" in each for each in texts):
        return texts[0] if texts else None
    named: dict[str, str] = {}
    for each in texts:
        component, _, dtype = each.partition("=")
        if not component or not dtype or component in named:
            fix = "give one DTYPE for all, or one COMPONENT=DTYPE for each, for example t5=float32"
            raise UsageError(f"--dtype {each}: not clear for which component", fix=fix)
        named[component] = dtype
    return named


def _headline(summary: DeriveSummary) -> str:
    if not summary.derived:
        complete = quantity(summary.already_complete, "images")
        failed = f", {summary.failed:,} failed" if summary.failed else ""
        are = "is" if summary.already_complete == 1 else "are"
        return f"nothing to derive: {complete} {are} complete{failed}"
    verb = "would derive" if summary.dry_run else "derived"
    line = f"{verb} {quantity(summary.derived, 'images')} in {shown(summary.derived_dir)}"
    if summary.device:
        line += f" on {summary.device}"
    if summary.dry_run:
        return line
    pace = rate(summary.derived / max(summary.seconds, 1e-3), "images")
    return f"{line} [{summary.seconds:.1f} s, {pace}, {bottleneck(summary)}]"


def bottleneck(summary: DeriveSummary | BuildSummary) -> str:
    """Say which part of the time the encoders were idle, and why if that is known."""
    decoding = summary.encoder_waited > _IDLE and summary.cores_used > _BUSY
    why = ": image decoding is the bottleneck" * decoding
    return f"encoder idle {summary.encoder_waited:.0%}{why}"


def _forecast(summary: DeriveSummary, trial: Trial) -> str:
    if not trial.images:
        return "trial: no image could be derived, so nothing was measured; try more of them"
    steps = {"read": trial.read} | {f"encode {name}": took for name, took in trial.encode.items()}
    rows = [("step", "an image", "rate")]
    for step, seconds in steps.items():
        pace = rate(1 / max(seconds, 1e-6), "images") + " a core" * (step == "read")
        rows.append((step, f"{1000 * seconds:,.1f} ms", pace))
    peaks = ", ".join(f"{size(peak)} on {device}" for device, peak in trial.memory.items())
    lines = [f"trial of {quantity(trial.images, 'images')}, kept in the store", table(rows)]
    lines.append(f"memory: at most {peaks}")
    if trial.left:
        enough = "" if trial.bytes_left <= summary.free_bytes else ": NOT ENOUGH"
        lines.append(
            f"the other {quantity(trial.left, 'images')}: about {duration(trial.seconds_left)} and "
            f"{size(trial.bytes_left)}, {size(summary.free_bytes)} free{enough}. To derive them, "
            "run the same command without --trial"
        )
    return "\n".join(lines)


def _components(summary: DeriveSummary) -> str:
    made = ("to make", "needs") if summary.dry_run else ("made", "bytes")
    rows = [("component", "there", *made, "model")]
    for name, part in summary.components.items():
        count, bytes_ = part.made, f"{part.bytes_written:,}"
        if summary.dry_run:
            count, bytes_ = part.to_make, f"about {size(part.bytes_needed)}"
        made_by = part.settings or {"model": "not needed"}
        model = made_by.get("model") or made_by.get("encoder", "")
        model = "made elsewhere" if part.elsewhere else model
        rows.append((name, f"{part.there:,}", f"{count:,}", bytes_, str(model)))
    return table(rows)


def _counts(summary: DeriveSummary) -> str:
    lines = [
        f"images_found: {summary.images_found:,}",
        f"derived: {summary.derived:,}",
        f"already_complete: {summary.already_complete:,}",
        f"failed: {summary.failed:,}",
        *by_reason(summary.failed_by_reason),
    ]
    if summary.left_out:
        lines += [f"left_out: {total(summary.left_out):,}", *by_reason(summary.left_out)]
    if summary.kept_captions:
        lines.append(f"kept_captions: {summary.kept_captions:,} (the new text is not encoded)")
    if summary.replaced_captions and not summary.updated_captions:
        lines.append(f"replaced_captions: {summary.replaced_captions:,}")
    for name, paths in (
        ("updated_images", summary.updated_images),
        ("updated_captions", summary.updated_captions),
        ("updated_columns", [f"{', '.join(n)} of {p}" for p, n in summary.updated_columns.items()]),
        ("renamed", [f"{old} to {new}" for old, new in summary.renamed.items()]),
        ("pruned", list(map(near, summary.pruned))),
    ):
        if paths:
            lines.append(f"{name}: {len(paths):,} (for example {shown(paths[0])})")
    lines += change_lines(summary) + facts_lines(summary)
    lines += caption_lines(summary.caption_rows)
    lines += by_reason(summary.unused_rows, "unused_rows, ")
    lines += by_reason(summary.unapplied_profiles, "")
    if summary.fit is not None:
        lines.append(f"fit {summary.fit}")
    return "\n".join(lines)
