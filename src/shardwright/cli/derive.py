"""``shardwright derive``: Stage 2."""

from __future__ import annotations

import argparse

import shardwright
from shardwright.cli.options import IGNORE_SPACE, STORE, declare, names, number, path, switch, text
from shardwright.cli.printing import call, facts_lines, shown_lines, table
from shardwright.deriving import DeriveSummary
from shardwright.errors import UsageError
from shardwright.layout import STATE_FOLDER
from shardwright.progress import quantity, rate, size
from shardwright.text import shown

HELP = "Stage 2: make the arrays and records of a folder of images and captions"
DESCRIPTION = f"""\
Makes what a store lacks of the images below a folder: an array of each component, and a record.

Captions are taken from --captions, else from the record in the store, else from name.txt beside
name.jpg; when --recompute encodes captions again, name.txt goes before the record. An image's
id is its file name without the extension. What exists is neither made again nor touched, so run it
again after an interruption, or when images were added. Hidden files and links to folders are passed
over.

Images that cannot be derived are listed with their reasons in failures.jsonl below
DERIVED_DIR/{STATE_FOLDER}; what arrays were made with is in provenance.json beside it, and a run
with other settings stops before any work. --recompute makes new arrays beside the old ones, which
stay in use until all are made. For a first look without models: --encoders sketch."""
EXAMPLE = """\
  shardwright derive data/approved --dry-run
  shardwright derive data/approved --captions captions.jsonl --fit bucket
  shardwright derive --components vae --batch-size 2 --model vae=/models/FLUX.1-dev
"""
EXIT_STATUS = """\
exit status:
  0    done
  1    failed: other settings than before, the disk is full, 100 failures in a row
  2    wrong usage, no images, no captions at all, or no such model
  3    done, but some images failed
  11   another run is writing to the same store
  130  interrupted (terminated: 143, hung up: 129); what was made is kept, the same command goes on
"""
_IDLE = 0.5  # of the time: an encoder that waits longer is not what the run waits for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    model = text("COMPONENT=ID", "another model: a hub id or a folder; may be given several times")
    flags = {
        "images": path("IMAGES", "(%(default)s)"),
        **STORE,
        "--captions": path(
            "FILE", "JSONL or CSV with image_path or file_name, and caption or text"
        ),
        "--encoders": text(
            "SET", "pretrained, or sketch: without models, for trying things out (%(default)s)"
        ),
        "--model": {**model, "action": "append"},
        "--components": names("COMPONENT", "make these only, for example vae"),
        "--recompute": names(
            "COMPONENT",
            "recompute these, also what is there; none: discard what is unfinished and not in use",
        ),
        "--drop-failed": switch(
            "end a recompute without the images that failed; their old arrays are deleted"
        ),
        "--fit": text(
            "HOW",
            "latents of the original size, or of the bucket's: resized to cover it and cut about "
            "the centre (%(default)s)",
        ),
        "--device": text("DEVICE", "auto, cpu, cuda, cuda:N or mps (%(default)s)"),
        "--dtype": text(
            "DTYPE",
            "to compute in, for example bfloat16 (what suits the device and the model)",
        ),
        "--batch-size": number(
            "images encoded at a time; halved when a device has no memory for them (8, or fewer "
            "where memory is short)"
        ),
        **IGNORE_SPACE,
        "--dry-run": switch("say what would be made, and make nothing"),
    }
    declare(parser, shardwright.derive, flags)


def run(options: argparse.Namespace) -> int:
    """Derive, then print the summary."""
    options.model = dict(map(_model, options.model or []))
    summary = call(shardwright.derive, options, describe)
    return 1 if summary.obstacle else 3 if summary.failed else 0


def describe(summary: DeriveSummary) -> str:
    """Tell a person what was made, what was not, and what to do about it."""
    parts = [_headline(summary), _components(summary), _counts(summary)]
    if summary.dry_run and summary.bytes_needed:
        verdict = "enough" if summary.bytes_needed <= summary.free_bytes else "NOT ENOUGH"
        parts.append(
            f"space: about {summary.bytes_needed:,} bytes needed, {summary.free_bytes:,} free: "
            f"{verdict}"
        )
    if summary.obstacle is not None:
        parts.append(f"the run itself would stop: {shown_lines(summary.obstacle)}")
    if summary.unfinished:
        parts.append(_unfinished(summary))
    if summary.failed and not summary.dry_run:
        parts.append(
            f"each failure with its reason: {shown(summary.derived_dir)}/{STATE_FOLDER}/"
            "failures.jsonl; fix the images and run the same command again"
        )
    return "\n\n".join(parts)


def _unfinished(summary: DeriveSummary) -> str:
    parts = summary.components.items()
    missing = max((part.not_recomputed, name) for name, part in parts if part.not_recomputed)
    have, array, them = ("has", "array", "it") if missing[0] == 1 else ("have", "arrays", "them")
    return (
        f"{quantity(missing[0], 'images')} {have} no new {missing[1]} {array}, so the old ones "
        f"stay in use; fix {them} and run the same command again, or add --drop-failed to go on "
        f"without {them}"
    )


def _model(text: str) -> tuple[str, str]:
    component, equals, model = text.partition("=")
    if not equals or not model:
        raise UsageError(f"--model {text}: write COMPONENT=ID, for example dinov3=FOLDER")
    return component, model


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
    idle = f"encoder idle {summary.encoder_waited:.0%}"
    if summary.encoder_waited > _IDLE:
        idle += ": image decoding is the bottleneck"
    return f"{line} [{summary.seconds:.1f} s, {pace}, {idle}]"


def _components(summary: DeriveSummary) -> str:
    made = ("to make", "needs") if summary.dry_run else ("made", "bytes")
    rows = [("component", "there", *made, "model")]
    for name, part in summary.components.items():
        count, bytes_ = part.made, f"{part.bytes_written:,}"
        if summary.dry_run:
            count, bytes_ = part.to_make, f"about {size(part.bytes_needed)}"
        model = part.settings.get("model", "") if part.settings else "not needed"
        rows.append((name, f"{part.there:,}", f"{count:,}", bytes_, str(model)))
    return table(rows)


def _counts(summary: DeriveSummary) -> str:
    lines = [
        f"images_found: {summary.images_found:,}",
        f"derived: {summary.derived:,}",
        f"already_complete: {summary.already_complete:,}",
        f"failed: {summary.failed:,}",
    ]
    if kept := summary.kept_captions:
        lines.append(f"kept_captions: {kept:,} (the new ones are not encoded)")
    if summary.replaced_captions:
        lines.append(f"replaced_captions: {summary.replaced_captions:,}")
    lines += facts_lines(summary)
    for reason, rows in summary.unused_rows.items():
        lines.append(f"unused_rows, {reason}: {rows.count:,} (for example {shown(rows.example)})")
    for reason, images in summary.unapplied_profiles.items():
        about = "about " if summary.profiles_estimated and reason == "profile_ignored" else ""
        lines.append(f"{reason}: {about}{images.count:,} (for example {shown(images.example)})")
    for reason, failed in summary.failed_by_reason.items():
        lines.append(f"  {reason}: {failed.count:,} (for example {shown(failed.example)})")
    if summary.fit is not None:
        lines.append(f"fit {summary.fit}")
    return "\n".join(lines)
