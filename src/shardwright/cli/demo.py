"""``shardwright demo``: all steps on generated pictures."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shardwright.cli import derive, pack, verify
from shardwright.cli.options import RECIPE, path
from shardwright.cli.printing import call
from shardwright.text import shown

if TYPE_CHECKING:
    from shardwright.demo import DemoSummary

HELP = "run all steps on generated pictures, in seconds"
DESCRIPTION = """\
Paints pictures in several shapes, each with a caption. Derives their arrays with the sketch
encoders, packs them into shards, verifies every value of the store, compares the shards with it,
reads them back with only Python's tarfile, and writes a report of them. Downloads nothing, and does
not need torch."""
EXAMPLE = "  shardwright demo\n"
_NEXT = """\
next, on your own images (name.jpg with name.txt beside it, or --captions FILE):
  shardwright derive IMAGES --dry-run --encoders sketch   what would be made
  pip install '.[encode]'                                 for the real models, in the checkout
  shardwright derive IMAGES --fit bucket
  shardwright pack --shuffle"""
EXIT_STATUS = """\
exit status:
  0    done
  1    failed
  2    wrong usage, or the folder is in use for something else
  11   another run is writing there
  12   the result is damaged; do not trust this disk
  130  interrupted (terminated: 143, hung up: 129); run the same command to continue
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    folder = path("DIR", "a new folder (%(default)s)")
    parser.add_argument("folder", nargs="?", default="shardwright-demo", **folder)
    for name, flag in RECIPE.items():
        parser.add_argument(name, **flag)


def run(options: argparse.Namespace) -> int:
    """Run the demo, then print each step."""
    from shardwright.demo import demo  # here, because it needs NumPy and --help does not

    result = call(demo, options, _describe)
    return verify.DAMAGED if any(report.damaged for report in result.verified) else 0


def _describe(result: DemoSummary) -> str:
    parts = [
        f"1. painted {result.derived.images_found} pictures with captions in "
        f"{shown(result.folder)}/images",
        f"2. {derive.describe(result.derived)}",
        f"3. {pack.describe(result.packed)}",
        "\n".join(f"  {line}" for line in result.tree),
        *(f"{step}. {verify.describe(report)}" for step, report in enumerate(result.verified, 4)),
        "\n".join(
            [f"6. read back all {result.samples_read} samples with tarfile; the first:"]
            + [f"  {name:<20} {text}" for name, text in result.first_sample.items()]
        ),
    ]
    if result.preview is not None:
        parts.append(f"its latent, decoded again: {shown(result.preview)}")
    report, shards = shown(result.report), shown(f"{result.folder}/shards")
    parts.append(f"7. wrote a page with what is in it: {report}\n  more: shardwright look {shards}")
    parts.append(_NEXT)
    return "\n\n".join(parts)
