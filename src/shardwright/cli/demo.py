"""``shardwright demo``: the whole flow on made-up pictures."""

from __future__ import annotations

import argparse

from shardwright.cli import derive, pack, verify
from shardwright.cli.options import path
from shardwright.cli.output import print_json, progress

HELP = "run the whole flow on made-up pictures, in seconds"
DESCRIPTION = """\
Paints some pictures in several shapes, each with a caption; derives their arrays with the sketch
encoders, packs them into shards, verifies every value of the store and holds the shards against it,
and reads them back with nothing but Python's tarfile. Nothing is downloaded, nor torch needed."""
EXAMPLE = "  shardwright demo\n"
EXIT_STATUS = """\
exit status:
  0    done
  1    failed
  2    wrong usage, or the folder is in use for something else
  11   another run is writing there
  12   what was made is damaged, so the disk is not to be trusted
  130  interrupted (terminated: 143, hung up: 129); the same command goes on
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folder",
        type=path,
        nargs="?",
        default="shardwright-demo",
        metavar="DIR",
        help="a folder of its own (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo and tell the story."""
    from shardwright.demo import demo  # here, because it needs NumPy and --help does not

    result = demo(folder=options.folder, progress=progress())
    code = 12 if any(report.damaged for report in result.verified) else 0
    if options.json:
        print_json(result.to_dict())
        return code
    folder = result.folder
    print(f"1. painted {result.derived.images_found} pictures with captions in {folder}/images\n")
    print(f"2. {derive.describe(result.derived)}\n")
    print(f"3. {pack.describe(result.packed)}\n")
    print("\n".join(f"  {line}" for line in result.tree))
    for step, report in enumerate(result.verified, 4):
        print(f"\n{step}. {verify.describe(report)}")
    print(f"\n6. read back all {result.samples_read} samples with tarfile; the first:")
    print("\n".join(f"  {name:<20} {text}" for name, text in result.first_sample.items()))
    print(f"\nits latent, decoded again: {result.preview}")
    print("\nnext, on your own images (name.jpg with name.txt beside it, or --captions FILE):")
    print("  shardwright derive IMAGES --dry-run --encoders sketch   what would be made")
    print("  pip install 'shardwright[encode]'                       for the real models")
    print("  shardwright derive IMAGES --fit bucket")
    print("  shardwright pack --shuffle")
    return code
