"""Where the samples of a run come from, and whether earlier shards of the folder fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shardwright.errors import ProvenanceError, UsageError
from shardwright.progress import Progress
from shardwright.shards.format import consistency, manifest
from shardwright.shards.format.manifest import Manifest
from shardwright.store.commands import quoted
from shardwright.store.provenance import Entry
from shardwright.store.store import Store


@dataclass(frozen=True)
class Origin:
    """What a manifest records of the store that was packed."""

    store: Store
    entries: dict[str, Entry]  # how its components were made, as far as that is known

    @property
    def jsonl_name(self) -> str:
        """Give the path of the JSONL as a run records it."""
        return manifest.relative_name(self.store.jsonl, self.store.folder)

    @property
    def provenance(self) -> Any:  # noqa: ANN401 - a document
        """Give what the store's provenance file holds; None if it has none."""
        entries = msgspec.to_builtins(self.entries, order="sorted")
        return {"components": entries} if entries else None

    def require_same_jsonl(self, known: Sequence[str], output: Path) -> None:
        """Raise if the shards were packed from other JSONLs, which may hold out samples."""
        if known and self.jsonl_name not in known:
            before = [str(self.store.of(name).jsonl) for name in known]
            raise UsageError(
                f"was packed from {' and '.join(before)}, not from {self.store.jsonl}, so nothing "
                "was written",
                path=output,
                fix=f"give --jsonl {quoted(before[-1])}, or add --other-jsonl to pack from both",
            )

    def require_same_kind(self, base: Manifest, output: Path, progress: Progress) -> None:
        """Raise if the store's arrays were made with other settings than those of the shards kept.

        Where the settings are not recorded, warn.
        """
        if not base.shards:
            return
        if not base.jsonls():
            progress.warn(
                f"{output}: the manifest does not name the JSONL of its shards; if it was only a "
                f"part of the store, check that {self.store.jsonl} holds no held-out sample"
            )
        if names := consistency.unknown_settings(base, self.entries):
            progress.warn(
                f"{output}: the settings of {' and '.join(names)} are recorded only for the shards "
                "or only for the store; check that they are the same"
            )
        fix = "pack all buckets again with --overwrite, or give another --output-dir"
        if base.samples_of() != self.store.recipe:
            what = "its shards were made with another recipe, so nothing was written"
            raise ProvenanceError(what, path=output, fix=fix)
        if listed := consistency.other_settings(base, self.entries):
            what = (
                f"its shards hold arrays made with other settings ({listed}); nothing was written"
            )
            raise ProvenanceError(what, path=output, fix=fix)
