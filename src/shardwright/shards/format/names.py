"""Paths of shards: ``bucket_WIDTHxHEIGHT/shard-NNNNNN.tar``."""

from __future__ import annotations

import re

from shardwright.buckets import is_bucket
from shardwright.layout import BUCKET_PREFIX
from shardwright.storage.files import TMP_SUFFIX
from shardwright.storage.urls import Location, names

_DIGITS = "[0-9]{6,18}"  # bounded, so that it is a number that can be counted on
_SHARD = re.compile(rf"shard-({_DIGITS})\.tar", re.ASCII)
_LEFTOVER = re.compile(rf"shard-{_DIGITS}\.(tar|idx|jsonl)" + re.escape(TMP_SUFFIX), re.ASCII)


def bucket_folder(bucket: str) -> str:
    """Name the folder of a bucket."""
    return BUCKET_PREFIX + bucket


def shard_name(number: int) -> str:
    """Name a shard; names sort like numbers."""
    return f"shard-{number:06}.tar"


def shard_number(path: str) -> int:
    """Read the number of a shard from its path."""
    match = _SHARD.fullmatch(path.rpartition("/")[2])
    if match is None:
        raise ValueError(f"{path!r} is not the path of a shard")
    return int(match[1])


def is_shard_path(path: str) -> bool:
    """Whether a path is that of a shard below an output folder, and leads nowhere else."""
    folder, _, name = path.partition("/")
    bucket = folder.removeprefix(BUCKET_PREFIX)
    return folder != bucket and is_bucket(bucket) and _SHARD.fullmatch(name) is not None


def existing_buckets(output_dir: Location) -> list[str]:
    """List the buckets that have a folder here."""
    split = (name.partition(BUCKET_PREFIX) for name in names(output_dir))
    return [bucket for before, _, bucket in split if not before and is_bucket(bucket)]


def existing_shards(folder: Location) -> dict[int, Location]:
    """Find the shards in a bucket's folder, by number."""
    matches = map(_SHARD.fullmatch, names(folder))
    return {int(match[1]): folder / match[0] for match in matches if match}


def leftovers(folder: Location) -> list[Location]:
    """Find the partly written files of a killed run in a bucket's folder."""
    return [folder / name for name in names(folder) if _LEFTOVER.fullmatch(name)]
