"""``shardwright verify``: proof that a store or a shard folder is whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shardwright
from shardwright.cli.options import WORKERS, declare, path, switch
from shardwright.cli.printing import call, listed
from shardwright.progress import quantity, size
from shardwright.store.findings import FAIL, NEEDS_INDEX
from shardwright.text import shown
from shardwright.verifying import Finding, VerifyReport

HELP = "prove that a store or a shard folder is whole, or list what is not"
DESCRIPTION = """\
Checks a Stage 2 store: every record has its fields, rightly spelt, and a mask of zeros and ones,
with ones where there is a caption, and only there; no image and no image_id is there twice; every
array is there with the dtype and shape that the recipe, the picture and the bucket demand. With
--read-data every value is read as well, to find NaN, infinities and arrays of one value. Arrays
without a record are only noted.

Checks a shard folder: every shard of the manifest is there under its name and of its size, with its
index, and no other; the first and last header of each are looked at. With --read-data every byte is
held against its checksum, and what differs is named down to the member. --against also holds each
member against the store, byte for byte. Shards without a manifest, such as another tool's, are
checked as loaders would read them. --loaders says which loaders can read the folder, by running
their own splitting and grouping rules over all headers and JSON members.

Each finding names the file and the cure. Nothing is changed."""
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
  12   damaged
  130  interrupted (terminated: 143, hung up: 129)
"""
_LISTED = 20  # findings of each kind
DAMAGED = 12  # the exit code
_UNPROVEN = {"no_manifest", "part"}  # notes with which nobody knows what should be there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    flags = {
        "path": path("PATH", "what to check (%(default)s)"),
        "--read-data": switch("read every byte too"),
        "--against": path("DERIVED_DIR", "hold shards against this store; reads every byte"),
        "--loaders": switch("also say which loaders can read the shards"),
        **WORKERS,
    }
    declare(parser, shardwright.verify, flags)


def run(options: argparse.Namespace) -> int:
    """Verify, then print what was found."""
    report = call(shardwright.verify, options, describe)
    return DAMAGED if report.damaged else 0


def describe(report: VerifyReport) -> str:
    """Tell a person what was found: the notes, then the damage, then the verdict."""
    kinds: dict[str, list[Finding]] = {}
    for finding in sorted(report.findings, key=lambda finding: finding.damage):
        kinds.setdefault(finding.kind, []).append(finding)
    parts = [_kind(kind, findings) for kind, findings in kinds.items()]
    if report.loaders is not None:
        parts.append("\n".join(["loaders:", *_loaders(report)]))
    parts.append(_verdict(report))
    return "\n\n".join(parts)


def _kind(kind: str, findings: list[Finding]) -> str:
    note = "" if findings[0].damage else " (a warning)"
    head = f"{kind}: {len(findings):,}{note}"
    return "\n".join([head, *listed(findings, _LISTED)])


def _loaders(report: VerifyReport) -> Iterator[str]:
    from shardwright.store.commands import command  # here, because --help is to be quick

    for loader, verdict in (report.loaders or {}).items():
        if verdict == NEEDS_INDEX:
            verdict = f"pass, after {command('index', report.path, '--for', loader)}"
        yield f"  {loader:<10}  {verdict.upper() if verdict == FAIL else verdict}"


def _verdict(report: VerifyReport) -> str:
    damage = sum(finding.damage for finding in report.findings)
    notes = len(report.findings) - damage
    warnings = f", {quantity(notes, 'warnings')}" if notes else ""
    verdict = f"DAMAGED: {quantity(damage, 'findings')}" if damage else "OK: no damage"
    unproven = _UNPROVEN & report.counts.keys()
    if unproven and not damage:
        verdict = "OK, as far as can be told without a manifest"
    checked = ", ".join(quantity(count, what) for what, count in report.checked.items())
    read = "every byte read" if report.read_data else "only headers and sizes read"
    if not (report.read_data or unproven) and "shards" in report.checked:
        read = "only sizes, indexes and the first and last header of each shard read"
    return (
        f"{shown(report.path)}: {verdict}{warnings}\n"
        f"  {checked} ({size(report.bytes)}), {read} [{report.seconds:.1f} s]"
    )
