"""Turns approved images and captions into training-ready WebDataset shards.

Each function is the command of the same name: ``shardwright.pack(output_dir="data/shards")`` does
what ``shardwright pack --output-dir data/shards`` does, and gives back a summary. ``open`` is for
training: it reads shards.
"""

from shardwright.deriving import ComponentSummary, DeriveSummary, FailedReason, derive
from shardwright.errors import (
    DamageError,
    InputMissingError,
    LockedError,
    MissingExtraError,
    NoSpaceError,
    ProvenanceError,
    ShardExistsError,
    ShardwrightError,
    SourceChangedError,
    StorageError,
    TooManyFailuresError,
    UsageError,
)
from shardwright.migrating import MigrateSummary, migrate
from shardwright.packing import BucketSummary, PackSummary, SkippedReason, pack
from shardwright.progress import Progress
from shardwright.reporting import BucketStatus, ComponentStatus, PackedStatus, StoreStatus, status
from shardwright.shards.loaders.indexing import IndexSummary, index
from shardwright.shards.reader.opening import open  # noqa: A004 - for shardwright.open, as gzip.open
from shardwright.verifying import Finding, VerifyReport, verify
from shardwright.version import __version__

__all__ = [
    "BucketStatus",
    "BucketSummary",
    "ComponentStatus",
    "ComponentSummary",
    "DamageError",
    "DeriveSummary",
    "FailedReason",
    "Finding",
    "IndexSummary",
    "InputMissingError",
    "LockedError",
    "MigrateSummary",
    "MissingExtraError",
    "NoSpaceError",
    "PackSummary",
    "PackedStatus",
    "Progress",
    "ProvenanceError",
    "ShardExistsError",
    "ShardwrightError",
    "SkippedReason",
    "SourceChangedError",
    "StorageError",
    "StoreStatus",
    "TooManyFailuresError",
    "UsageError",
    "VerifyReport",
    "__version__",
    "derive",
    "index",
    "migrate",
    "open",
    "pack",
    "status",
    "verify",
]
