"""Turns approved images and captions into training-ready WebDataset shards.

Each function is the command of the same name: ``shardwright.pack(output_dir="data/shards")`` does
what ``shardwright pack --output-dir data/shards`` does, and gives back a summary.
"""

from shardwright.errors import (
    DamageError,
    InputMissingError,
    LockedError,
    NoSpaceError,
    ShardExistsError,
    ShardwrightError,
    SourceChangedError,
    StorageError,
    UsageError,
)
from shardwright.pack import BucketSummary, PackSummary, SkippedReason, pack
from shardwright.progress import Progress
from shardwright.version import __version__

__all__ = [
    "BucketSummary",
    "DamageError",
    "InputMissingError",
    "LockedError",
    "NoSpaceError",
    "PackSummary",
    "Progress",
    "ShardExistsError",
    "ShardwrightError",
    "SkippedReason",
    "SourceChangedError",
    "StorageError",
    "UsageError",
    "__version__",
    "pack",
]
