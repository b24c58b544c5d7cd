"""prove that a store or a shard folder is undamaged, or list what is wrong.

A store (Stage 2: JSONL and arrays): every record has valid fields and a mask of zeros and ones,
with ones only if there is a caption. No image and no image_id appears twice. Every array exists,
with the dtype and shape that the recipe, the picture and the bucket require. With --read-data every
value is read too, to find NaN, infinities and arrays of one value. An array without a record is
only a warning.

A shard folder: every shard of the manifest exists with its name, size, index and records, and no
other; the first and last header of each are read. With --read-data every byte is compared with its
checksum, and damage is located down to the member. --against also compares each member with the
store, byte for byte. A sample whose shard is undamaged, but whose record or arrays the store has
changed or removed since, is outdated: pack --sync updates it. A member whose array is missing in
the store is not compared, which is no damage of the shard.

--against may also name the images that the shards show: a folder of images or of tars of images, or
a tar, as for build. Then --samples of the samples, spread evenly over all shards, are recomputed
with the recorded settings and models, and compared: sketches and masks to the bit, arrays of models
within the rounding of the recorded dtype. A sample whose image has changed since is outdated, and
one whose image is missing is not compared. Another model than the recorded one is refused. --recipe
names models that have moved, and is needed for encoders of your own.

Shards without a manifest, for example another tool's, are checked as loaders would read them.
--loaders lists the loaders that can read the folder, by applying their own splitting and grouping
rules to all headers and JSON members. In a split folder no sample is in two parts, and no tar file
is outside the parts.

A shard folder may be at a URL: s3://BUCKET/FOLDER, gs:// or az://. With --read-data each shard is
read once, in ranges side by side, and not copied to the disk; --loaders reads each once more.
Without them, more --workers help, because most of the time is spent waiting for the store.

Each finding names the file and the fix. Nothing is changed.

  shardwright verify data/derived
  shardwright verify data/shards --read-data
  shardwright verify data/shards --against data/derived
  shardwright verify data/shards --against data/approved --samples 64
  shardwright verify data/shards --loaders
  shardwright verify s3://bucket/shards --read-data

exit status:
  0    no damage in what was read; there may be warnings
  1    failed
  2    wrong usage, or there is neither a store nor a shard
  3    no damage, but the store or the images have changed since, or some of them are missing
  12   damaged
  130  interrupted (terminated: 143, hung up: 129)
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.cli.options import CLUSTER, RECIPE, WORKERS, number, path, switch, text
from shardwright.cli.printing import listed
from shardwright.progress import quantity, size
from shardwright.store.findings import (
    ALIKE,
    EMPTY_OUTDATED,
    FAIL,
    IDENTICAL,
    IMAGE_DIFFERS,
    NEEDS_INDEX,
    NOT_COMPARED,
    OUTDATED,
)
from shardwright.text import shown
from shardwright.verifying import Finding, VerifyReport

_LISTED = 20  # findings of each kind
DAMAGED, SOURCE_CHANGED = 12, 3  # the exit codes
_CHANGED = (OUTDATED, EMPTY_OUTDATED, NOT_COMPARED)  # of the store: neither damage nor a warning
_UNPROVEN = {"no_manifest"}  # warnings that the expected contents are unknown


FLAGS = {
    "path": path("PATH", "a folder or a URL (data/derived, or as the recipe says)"),
    **RECIPE,
    "--read-data": switch("read every byte too"),
    "--against": path(
        "DERIVED_DIR|IMAGES",
        "compare shards with this store, which reads every byte; or some samples with images",
    ),
    "--samples": number("how many samples to recompute from images (16)"),
    "--device": text(
        "DEVICE",
        "where to recompute them: auto, cpu, cuda, cuda:N or mps (auto)",
        *("auto", "cpu", "cuda", "mps"),
    ),
    "--loaders": switch("also list the loaders that can read the shards"),
    **WORKERS,
    **CLUSTER,
}


def exit_code(report: VerifyReport) -> int:
    """Give the exit code."""
    if report.damaged:
        return DAMAGED
    return SOURCE_CHANGED if report.changed else 0


def describe(report: VerifyReport) -> str:
    """List the warnings, then the damage, then the verdict."""
    kinds: dict[str, list[Finding]] = {}
    for finding in sorted(report.findings, key=lambda finding: finding.damage):
        kinds.setdefault(finding.kind, []).append(finding)
    parts = [
        _outdated(report.outdated, findings) if kind == OUTDATED else _kind(kind, findings)
        for kind, findings in kinds.items()
    ]
    if report.loaders is not None:
        parts.append("\n".join(["loaders:", *_loaders(report)]))
    parts.append(_verdict(report))
    return "\n\n".join(parts)


def _kind(kind: str, findings: list[Finding]) -> str:
    warning = "" if findings[0].damage or kind in _CHANGED else " (warning)"
    lines, fix = list(listed(findings, _LISTED)), shown(findings[0].fix)
    if kind in (IDENTICAL, ALIKE):  # whose fix is one for all
        lines = [*(line.removesuffix(f"; {fix}") for line in lines), fix]
    return "\n".join([f"{kind}: {len(findings):,}{warning}", *lines])


def _outdated(count: int, findings: list[Finding]) -> str:
    """List some outdated samples, and once how to update them."""
    lines = [f"  {str(one).removesuffix(f'; {shown(one.fix)}')}" for one in findings[:_LISTED]]
    if more := count - len(lines):
        lines.append(f"  and {more:,} more (--json lists {len(findings):,} in all)")
    fixes = (f"to update them, {shown(fix)}" for fix in dict.fromkeys(one.fix for one in findings))
    return "\n".join([f"{OUTDATED}: {count:,}", *lines, *fixes])


def _loaders(report: VerifyReport) -> Iterator[str]:
    from shardwright.store.commands import command  # here, for a quick --help

    for loader, verdict in (report.loaders or {}).items():
        if verdict == NEEDS_INDEX:
            verdict = f"pass, after {command('index', report.path, '--for', loader)}"
        yield f"  {loader:<10}  {verdict.upper() if verdict == FAIL else verdict}"


def _verdict(report: VerifyReport) -> str:
    damage = sum(finding.damage for finding in report.findings)
    others = sum(not (finding.damage or finding.kind in _CHANGED) for finding in report.findings)
    warnings = f", {quantity(others, 'warnings')}" if others else ""
    outdated = [quantity(report.outdated, "samples")] if report.outdated else []
    outdated += ["the empty caption"] if EMPTY_OUTDATED in report.counts else []
    not_compared = quantity(report.not_compared, "arrays") if report.not_compared else ""
    unproven = _UNPROVEN & report.counts.keys()
    structure = "sizes, names, indexes" if "shards" in report.checked else "records, headers, sizes"
    no_damage = "no damage" if report.read_data else f"no damage in {structure}"
    if damage:
        verdict = f"DAMAGED: {quantity(damage, 'findings')}"
        verdict += f", {' and '.join(outdated)} OUTDATED" if outdated else ""
    elif outdated:
        verdict = f"OUTDATED: {' and '.join(outdated)}; {no_damage}"
    elif not_compared:
        verdict = f"NOT COMPARED: {not_compared}; {no_damage}"
    elif unproven:
        verdict = "OK, as far as can be checked without a manifest"
    else:
        verdict = f"OK: {no_damage}" if report.read_data else f"OK: structure ({structure})"
    if not_compared and (damage or outdated):
        verdict += f", {not_compared} NOT COMPARED"
    checked = ", ".join(quantity(count, what) for what, count in report.checked.items())
    read = "every byte read" if report.read_data else "only headers and sizes read"
    if not (report.read_data or unproven) and "shards" in report.checked:
        read = "only sizes, indexes, records and the first and last header of each shard read"
    not_searched = ""
    if report.not_searched is not None:
        why = shown(report.not_searched)
        not_searched = f"\n  near-duplicates in two parts not searched: {why}"
    return (
        f"{shown(report.path)}: {verdict}{warnings}{_unread(report)}\n"
        f"  {checked} ({size(report.bytes)}), {read} [{report.seconds:.1f} s]{_recomputed(report)}"
        f"{not_searched}"
    )


def _unread(report: VerifyReport) -> str:
    """Say what was not read, where that may hide damage."""
    if report.read_data or report.damaged:
        return ""
    data = size(report.bytes)
    what = f"{data} not read" if report.recomputed is None else f"not all of {data} read"
    return f"; {what}: add --read-data"


def _recomputed(report: VerifyReport) -> str:
    """Say how many samples were compared with their images."""
    if report.recomputed is None:
        return ""
    kinds = (IMAGE_DIFFERS, OUTDATED)
    differ = {(one.file, one.sample) for one in report.findings if one.kind in kinds}
    count = quantity(report.checked["samples"], "samples")
    verdict = "all equal" if report.recomputed else "none compared"
    if differ:
        verdict = f"{len(differ):,} {'differs' if len(differ) == 1 else 'differ'}"
    return f"\n  recomputed {report.recomputed:,} of {count} from images: {verdict}"
