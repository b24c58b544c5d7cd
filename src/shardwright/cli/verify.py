"""``shardwright verify``: check a store or a shard folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shardwright
from shardwright.cli.options import RECIPE, WORKERS, declare, path, switch
from shardwright.cli.printing import call, listed
from shardwright.progress import quantity, size
from shardwright.store.findings import FAIL, NEEDS_INDEX, NOT_COMPARED, OUTDATED
from shardwright.text import shown
from shardwright.verifying import Finding, VerifyReport

HELP = "prove that a store or a shard folder is undamaged, or list what is wrong"
DESCRIPTION = """\
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
the store is not compared, which is no damage of the shard. Shards without a manifest, for example
another tool's, are checked as loaders would read them. --loaders lists the loaders that can read
the folder, by applying their own splitting and grouping rules to all headers and JSON members. In a
split folder no sample is in two parts, and no tar file is outside the parts.

Each finding names the file and the fix. Nothing is changed."""
EXAMPLE = """\
  shardwright verify data/derived
  shardwright verify data/shards --read-data
  shardwright verify data/shards --against data/derived
  shardwright verify data/shards --loaders
"""
EXIT_STATUS = """\
exit status:
  0    no damage; there may be warnings
  1    failed
  2    wrong usage, or there is neither a store nor a shard
  3    no damage, but the store has changed since samples were packed, or lacks their arrays
  12   damaged
  130  interrupted (terminated: 143, hung up: 129)
"""
_LISTED = 20  # findings of each kind
DAMAGED, SOURCE_CHANGED = 12, 3  # the exit codes
_CHANGED = (OUTDATED, NOT_COMPARED)  # of the store: neither damage nor a warning
_UNPROVEN = {"no_manifest", "part"}  # warnings that the expected contents are unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    flags = {
        "path": path("PATH", "what to check (data/derived, or as the recipe says)"),
        **RECIPE,
        "--read-data": switch("read every byte too"),
        "--against": path("DERIVED_DIR", "compare shards with this store; reads every byte"),
        "--loaders": switch("also list the loaders that can read the shards"),
        **WORKERS,
    }
    declare(parser, shardwright.verify, flags)


def run(options: argparse.Namespace) -> int:
    """Verify, then print the findings."""
    report = call(shardwright.verify, options, describe)
    if report.damaged:
        return DAMAGED
    return SOURCE_CHANGED if report.outdated or report.not_compared else 0


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
    return "\n".join([f"{kind}: {len(findings):,}{warning}", *listed(findings, _LISTED)])


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
    verdict = f"DAMAGED: {quantity(damage, 'findings')}" if damage else "OK: no damage"
    if report.outdated:
        count = quantity(report.outdated, "samples")
        verdict = f"{verdict}, {count} OUTDATED" if damage else f"OUTDATED: {count}; no damage"
    if report.not_compared:
        count = quantity(report.not_compared, "arrays")
        alone = not (damage or report.outdated)
        verdict = (
            f"NOT COMPARED: {count}; no damage" if alone else f"{verdict}, {count} NOT COMPARED"
        )
    unproven = _UNPROVEN & report.counts.keys()
    if unproven and not (damage or report.outdated or report.not_compared):
        verdict = "OK, as far as can be checked without a manifest"
    checked = ", ".join(quantity(count, what) for what, count in report.checked.items())
    read = "every byte read" if report.read_data else "only headers and sizes read"
    if not (report.read_data or unproven) and "shards" in report.checked:
        read = "only sizes, indexes, records and the first and last header of each shard read"
    return (
        f"{shown(report.path)}: {verdict}{warnings}\n"
        f"  {checked} ({size(report.bytes)}), {read} [{report.seconds:.1f} s]"
    )
