"""see what is in a store or a shard folder, in a browser.

Opens a page in the browser that shows what a store, a shard folder or shards at a URL hold: counts
and histograms, what needs attention, a grid of samples to filter and sort, each sample with its
crop, its latent as a picture and what was cut off its caption, near-duplicates and outliers, and a
map. The page is served on this machine only (127.0.0.1), until Ctrl-C. Nothing is written to the
data, and nothing is loaded from elsewhere.

--report writes one self-contained page instead, --id prints one sample, and --duplicates lists
identical files and near-duplicates, all but the first of each group, for pack --exclude-ids-file or
--split-by. Images are compared by the first component with an encoder of ours that gives one vector
for each image (dinov2, dinov3, siglip2). --component names another; without one, only identical
files are found.

  shardwright look data/shards
  shardwright look data/derived --images /mnt/moved/approved
  shardwright look data/shards --compare data/shards-other-vae
  shardwright look s3://bucket/shards --images data/approved
  shardwright look data/shards --report report.html --samples 100
  shardwright look data/shards --id abc123xyz --save abc123xyz.png
  shardwright look data/derived --duplicates duplicates.jsonl --threshold 0.97

exit status:
  0    done
  1    failed
  2    wrong usage, or there is neither a store nor a shard, or no such sample
  12   the shards are damaged; shardwright verify lists how
  130  interrupted, which is how the page ends (terminated: 143, hung up: 129)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.cli.options import RECIPE, number, path, switch, text
from shardwright.cli.printing import table
from shardwright.looking import LookSummary
from shardwright.progress import quantity
from shardwright.text import shown

_STATISTICS = ("min", "max", "mean", "std")


FLAGS = {
    "path": path("PATH", "a store, a shard folder or a URL (data/derived)"),
    **RECIPE,
    "--images": path("DIR", "where the images are, if they have moved"),
    "--compare": path("PATH", "another store or shard folder, side by side by id"),
    "--decode": switch("show latents by the real decoder; needs torch and the model"),
    "--id": text("ID", "print one sample, and open no page"),
    "--save": path("FILE.png", "with --id: save its image, at most 1,024 pixels a side"),
    "--report": path("FILE.html", "write one self-contained page, and open none"),
    "--samples": number("pictures in the report (48)"),
    "--duplicates": path("FILE.jsonl", "list copies and near-duplicates, and open no page"),
    "--threshold": {
        "type": float,
        "metavar": "COSINE",
        "help": "with --duplicates: how alike they are at least (0.95)",
    },
    "--component": text("NAME", "compare images by this component, a vector for each image"),
    "--no-browser": switch("only print the address of the page", "store_false"),
    "--port": number("of the page (8417, or any free one)"),
}


def describe(summary: LookSummary) -> str:
    """Say what was written, or show the sample."""
    parts = [] if summary.sample is None else [_sample(summary.sample)]
    if summary.saved is not None:
        what = (
            "no image was found: saved its latent as a picture"
            if summary.saved_latent
            else ("saved its image")
        )
        parts.append(f"{what} in {shown(summary.saved)}")
    if summary.duplicates is not None:
        parts += _duplicates(summary, summary.duplicates)
    if summary.report is not None:
        count = f"{summary.shown:,} of {quantity(summary.samples, 'samples')}"
        parts.append(f"wrote a report with {count} to {shown(summary.report)}")
        if summary.attention:
            parts += ["needs attention:", *(f"  {line}" for line in summary.attention)]
    return "\n".join(parts)


def _duplicates(summary: LookSummary, file: str) -> Iterator[str]:
    from shardwright.comparing.copies import NO_VECTOR  # here, to keep --help fast

    about = "approximately, " if summary.approximate else ""
    by = f"by {summary.vector} ({about}cosine {summary.threshold} or more)"
    if not summary.listed:
        near = "" if summary.vector is None else f", and no near-duplicates {by}"
        yield f"no identical files{near}: {shown(file)} is empty"
    else:
        listed, groups = quantity(summary.listed, "samples"), quantity(summary.groups, "groups")
        near = f", {summary.listed - summary.identical:,} nearly alike {by}"
        near = "" if summary.vector is None else near
        identical = quantity(summary.identical, "identical files")
        yield f"listed {listed} of {groups} in {shown(file)}: {identical}{near}"
    if summary.vector is None:
        own = ""
        if summary.other_vectors:
            own = f"; to use one of your own, add --component {shown(summary.other_vectors[0])}"
        yield f"only identical files are found: {NO_VECTOR}{own}"
    if summary.unknown_files:
        count = quantity(summary.unknown_files, "samples")
        yield f"no hash of the image file is on record for {count}: not compared as files"
    if summary.in_parts:
        verb = "is" if summary.in_parts == 1 else "are"
        yield f"{quantity(summary.in_parts, 'groups')} {verb} in several parts of the split"
    if summary.listed:
        yield "to leave them out, give it to shardwright pack --exclude-ids-file"
        yield "to keep each group in one part of a split, give it to shardwright pack --split-by"


def _sample(sample: dict[str, Any]) -> str:
    from msgspec.json import encode  # here, to keep --help fast

    bucket = "" if sample["bucket"] is None else f", bucket {sample['bucket']}"
    state = "" if sample["state"] == "ready" else f", {sample['state']}"
    record = [
        f"  {shown(name)}: {shown(value if isinstance(value, str) else encode(value).decode())}"
        for name, value in sample["record"].items()
        if name != "caption"
    ]
    parts = [
        f"{shown(sample['id'])}{shown(bucket)}{shown(state)}\n  {shown(sample['place'])}",
        "\n".join(_caption(sample)),
        _members(sample),
        "\n".join(["record:", *record]),
    ]
    if sample["fault"] is not None:
        parts.insert(1, shown(sample["fault"]))
    if sample["flags"]:
        parts.insert(1, f"flags: {', '.join(sample['flags'])}")
    return "\n\n".join(part for part in parts if part)


def _caption(sample: dict[str, Any]) -> Iterator[str]:
    """Write the caption, with a mark where a component stops reading."""
    for name, count in sample["tokens"].items():
        yield f"{name} reads {quantity(count, 'tokens')}"
    text, done, caption = sample["text"], 0, ""
    for cut in sorted(sample["cuts"], key=lambda cut: cut["at"] or 0):
        words = f"{cut['component']} cuts off {quantity(cut['lost'], 'tokens')}"
        if cut["at"] is None:
            yield words
        else:
            caption += f"{shown(text[done : cut['at']])} [{words}:]"
            done = cut["at"]
    yield f"caption: {caption}{shown(text[done:])}"


def _members(sample: dict[str, Any]) -> str:
    rows = [["member", "dtype", "shape", "bytes", "min", "max", "mean", "std", "NaN"]]
    faults = []
    for member in sample["members"]:
        shape = "" if member["shape"] is None else "x".join(map(str, member["shape"]))
        found = (member.get(name) for name in _STATISTICS)
        numbers = ["" if value is None else f"{value:.4g}" for value in found]
        bad = f"{member['nan'] + member['inf']:,}" if "nan" in member else ""
        row = [member["name"], member["dtype"] or "", shape, f"{member['bytes']:,}", *numbers, bad]
        rows.append(row)
        if member["fault"] is not None:
            faults.append(f"{member['name']}: {shown(member['fault'])}")
    return "\n".join([table(rows), *faults])
