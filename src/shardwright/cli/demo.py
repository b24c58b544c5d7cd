"""run all steps on generated pictures, in seconds.

Paints pictures in several formats, each with a caption. Builds shards of them with the sketch
encoders, verifies them against the pictures, reads them back with only Python's tarfile, and writes
a report of them. Then makes the same shards with a store between: derive, pack. Downloads nothing,
and does not need torch.

  shardwright demo

exit status:
  0    done
  1    failed
  2    wrong usage, or the folder is in use for something else
  11   another run is writing there
  12   the result is damaged; do not trust this disk
  130  interrupted (terminated: 143, hung up: 129); run the same command to continue
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shardwright.cli import build, derive, pack, verify
from shardwright.cli.options import RECIPE, number, path
from shardwright.cli.printing import call
from shardwright.progress import quantity
from shardwright.text import shown

if TYPE_CHECKING:
    from shardwright.demo import DemoSummary

_NEXT = """\
next, on your own images (name.jpg with name.txt beside it, or --captions FILE):
  shardwright build IMAGES --dry-run --encoders sketch   what would be made
  pip install '.[encode]'                                for the real models, in the checkout
  shardwright build IMAGES --fit bucket --shuffle"""


FLAGS = {
    "folder": {**path("DIR", "a new folder (%(default)s)"), "default": "shardwright-demo"},
    "--pictures": {**number("how many to paint (%(default)s)"), "default": 24},
    **RECIPE,
}


def run(options: argparse.Namespace) -> int:
    """Run the demo, then print each step."""
    from shardwright.demo import demo  # here, because it needs NumPy and --help does not

    result = call(demo, options, _describe)
    return verify.DAMAGED if any(report.damaged for report in result.verified) else 0


def _describe(result: DemoSummary) -> str:
    shards, store, packed = map(verify.describe, result.verified)
    painted = quantity(result.built.inputs, "pictures")
    read = quantity(result.samples_read, "samples")
    parts = [
        f"1. painted {painted} with captions in {shown(result.folder)}/images",
        f"2. {build.describe(result.built)}",
        "\n".join(f"  {line}" for line in result.tree),
        f"3. {shards}",
        "\n".join(
            [f"4. read back all {read} with tarfile; the first:"]
            + [f"  {name:<20} {text}" for name, text in result.first_sample.items()]
        ),
    ]
    report, folder = shown(result.report), shown(f"{result.folder}/shards")
    parts.append(f"5. wrote a page with what is in it: {report}\n  more: shardwright look {folder}")
    same = "the same tars as build made, byte for byte" if result.same else "OTHER tars than build"
    parts += [
        f"6. with a store between, to curate it: {derive.describe(result.derived)}",
        store,
        f"7. {pack.describe(result.packed)}",
        f"{packed}\n{same}",
        _NEXT,
    ]
    return "\n\n".join(parts)
