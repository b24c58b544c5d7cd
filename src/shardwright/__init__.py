"""Turns approved images and captions into training-ready WebDataset shards.

Each function is the command of the same name: ``shardwright.pack(output_dir="data/shards")`` does
what ``shardwright pack --output-dir data/shards`` does, and gives back a summary. ``open`` is for
training: it reads shards. Encoders of your own follow ``ImageEncoder`` or ``TextEncoder``, and the
contract of the same name tests them.
"""

import importlib
import typing

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

if typing.TYPE_CHECKING:
    from shardwright.encoders.base import Encoder, ImageEncoder, TextEncoder, Tokens
    from shardwright.encoders.contract import ImageEncoderContract, TextEncoderContract
    from shardwright.shards.reader.batches import Batches
    from shardwright.shards.reader.dataset import Dataset

__all__ = [
    "Batches",
    "BucketStatus",
    "BucketSummary",
    "ComponentStatus",
    "ComponentSummary",
    "DamageError",
    "Dataset",
    "DeriveSummary",
    "Encoder",
    "FailedReason",
    "Finding",
    "ImageEncoder",
    "ImageEncoderContract",
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
    "TextEncoder",
    "TextEncoderContract",
    "Tokens",
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

_NEEDS_NUMPY = {  # imported on first use, because a start is to be quick
    "Batches": "shardwright.shards.reader.batches",
    "Dataset": "shardwright.shards.reader.dataset",
    "Encoder": "shardwright.encoders.base",
    "ImageEncoder": "shardwright.encoders.base",
    "ImageEncoderContract": "shardwright.encoders.contract",
    "TextEncoder": "shardwright.encoders.base",
    "TextEncoderContract": "shardwright.encoders.contract",
    "Tokens": "shardwright.encoders.base",
}

if not typing.TYPE_CHECKING:  # or mypy would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _NEEDS_NUMPY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_NEEDS_NUMPY[name]), name)

    def __dir__() -> list[str]:
        return __all__
