"""Flags that several commands share, so that each is spelt and read by one rule."""

from __future__ import annotations

import argparse

from shardwright.layout import JSONL_NAME


def add_store(parser: argparse.ArgumentParser) -> None:
    """Declare where the store is."""
    add = parser.add_argument
    add(
        "--derived-dir",
        type=path,
        default="data/derived",
        metavar="DIR",
        help="the store (%(default)s)",
    )
    add(
        "--jsonl",
        "--input-jsonl",
        type=path,
        metavar="FILE",
        help=f"its metadata (DERIVED_DIR/{JSONL_NAME})",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare how many processes may work at a time."""
    parser.add_argument("--workers", type=int, metavar="N", help="processes (as many as cores)")


def add_ignore_space(parser: argparse.ArgumentParser) -> None:
    """Declare the way past a disk that seems too small."""
    parser.add_argument(
        "--ignore-space", action="store_true", help="continue where the disk seems to be too small"
    )


def path(text: str) -> str:
    """Take a path; one that is empty is an unset variable, and must not come to mean here."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path, or . for the current folder")
    return text


def names(text: str) -> list[str]:
    """Split the names given to a flag that may also be repeated.

    For ``type=names, action="extend", default=[], metavar="NAME,..."``. An empty name stays, to be
    refused by whoever knows the right ones: an unset variable must not come to mean "all".
    """
    return [name.strip() for name in text.split(",")]
