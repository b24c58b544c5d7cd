"""``shardwright demo``: the flow on made-up data."""

from __future__ import annotations

import argparse
import dataclasses

from shardwright.cli.output import print_json, progress
from shardwright.cli.pack import describe

HELP = "run the whole flow on made-up data, in seconds"
DESCRIPTION = """\
Makes a small store with arrays of the right shapes in several buckets, packs it into shards, and
reads them back with nothing but Python's tarfile. Nothing is downloaded."""
EXAMPLE = "  shardwright demo\n"
EXIT_STATUS = """\
exit status:
  0   done
  1   failed
  2   the folder is in use for something else
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "folder", nargs="?", default="shardwright-demo", metavar="DIR", help="(%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo and tell the story."""
    from shardwright.demo import demo  # here, because it needs NumPy and --help does not

    result = demo(folder=options.folder, progress=progress())
    if options.json:
        print_json({**dataclasses.asdict(result), "folder": str(result.folder)})
        return 0
    print(f"made a store of {result.packed.total_records} samples in {result.folder}/derived")
    print(describe(result.packed))
    print(f"\n{result.folder}/shards")
    print("\n".join(f"  {line}" for line in result.tree))
    print("\nread back with tarfile, the first sample:")
    print("\n".join(f"  {name:<20} {text}" for name, text in result.first_sample.items()))
    print(f"\nall {result.samples_read} samples read back whole; look for yourself:")
    first = next(line for line in result.tree if line.endswith("/"))
    print(f"  tar -tf {result.folder}/shards/{first}shard-000000.tar")
    print("on your own store:")
    print("  shardwright pack --derived-dir data/derived --output-dir data/shards --dry-run")
    return 0
