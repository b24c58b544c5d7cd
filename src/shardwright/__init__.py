"""Turns approved images and captions into training-ready WebDataset shards.

Each function is the command of the same name: ``shardwright.pack(output_dir="data/shards")`` does
what ``shardwright pack --output-dir data/shards`` does, and returns a summary. ``open`` reads
shards for training. Your own encoders follow ``ImageEncoder`` or ``TextEncoder``; the contract of
the same name tests them.
"""

TYPE_CHECKING = False  # as in ``typing``, which would have to be imported for it
if TYPE_CHECKING:
    from shardwright.building import BuildSummary, build
    from shardwright.deriving import ComponentSummary, DeriveSummary, derive
    from shardwright.encoders.base import Encoder, ImageEncoder, Options, TextEncoder, Tokens
    from shardwright.encoders.contract import ImageEncoderContract, TextEncoderContract
    from shardwright.errors import (
        DamageError,
        InputMissingError,
        LockedError,
        MissingExtraError,
        NoSpaceError,
        OutdatedError,
        ProvenanceError,
        ShardExistsError,
        ShardwrightError,
        SourceChangedError,
        StorageError,
        TooManyFailuresError,
        UsageError,
    )
    from shardwright.looking import LookSummary, look
    from shardwright.migrating import MigrateSummary, migrate
    from shardwright.packing import BucketSummary, PackSummary, pack
    from shardwright.progress import Progress
    from shardwright.recipes import Component
    from shardwright.reporting import (
        BucketStatus,
        ComponentStatus,
        Exported,
        PackedStatus,
        StoreStatus,
        status,
    )
    from shardwright.shards.loaders import IndexSummary, index
    from shardwright.shards.reader import open  # noqa: A004 - for shardwright.open, as gzip.open
    from shardwright.shards.reader.batches import Batches
    from shardwright.shards.reader.dataset import Dataset
    from shardwright.showing import RecipeComponent, RecipeSummary, ShippedRecipe, recipe
    from shardwright.summary import Count
    from shardwright.verifying import Finding, VerifyReport, verify
    from shardwright.version import __version__

__all__ = [
    "Batches",
    "BucketStatus",
    "BucketSummary",
    "BuildSummary",
    "Component",
    "ComponentStatus",
    "ComponentSummary",
    "Count",
    "DamageError",
    "Dataset",
    "DeriveSummary",
    "Encoder",
    "Exported",
    "Finding",
    "ImageEncoder",
    "ImageEncoderContract",
    "IndexSummary",
    "InputMissingError",
    "LockedError",
    "LookSummary",
    "MigrateSummary",
    "MissingExtraError",
    "NoSpaceError",
    "Options",
    "OutdatedError",
    "PackSummary",
    "PackedStatus",
    "Progress",
    "ProvenanceError",
    "RecipeComponent",
    "RecipeSummary",
    "ShardExistsError",
    "ShardwrightError",
    "ShippedRecipe",
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
    "build",
    "derive",
    "index",
    "look",
    "migrate",
    "open",
    "pack",
    "recipe",
    "status",
    "verify",
]

# Where they are. Each is imported on its first use, so that an early Ctrl-C ends a command quietly
# and NumPy is imported only where it is needed.
_MODULES = {
    "building": "BuildSummary build",
    "deriving": "ComponentSummary DeriveSummary derive",
    "encoders.base": "Encoder ImageEncoder Options TextEncoder Tokens",
    "encoders.contract": "ImageEncoderContract TextEncoderContract",
    "errors": (
        "DamageError InputMissingError LockedError MissingExtraError NoSpaceError OutdatedError "
        "ProvenanceError ShardExistsError ShardwrightError SourceChangedError StorageError "
        "TooManyFailuresError UsageError"
    ),
    "looking": "LookSummary look",
    "migrating": "MigrateSummary migrate",
    "packing": "BucketSummary PackSummary pack",
    "progress": "Progress",
    "recipes": "Component",
    "reporting": "BucketStatus ComponentStatus Exported PackedStatus StoreStatus status",
    "shards.loaders": "IndexSummary index",
    "shards.reader.batches": "Batches",
    "shards.reader.dataset": "Dataset",
    "shards.reader": "open",
    "showing": "RecipeComponent RecipeSummary ShippedRecipe recipe",
    "summary": "Count",
    "verifying": "Finding VerifyReport verify",
    "version": "__version__",
}

if not TYPE_CHECKING:  # or mypy would take any name for one of ours

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names.split():
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__


del TYPE_CHECKING
