"""Where the samples of a run come from, and whether they may lie beside those of earlier runs."""

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
        """Spell the JSONL as a run records it."""
        return manifest.relative_name(self.store.jsonl, self.store.folder)

    @property
    def provenance(self) -> Any:  # noqa: ANN401 - a document
        """Give what the store's own file says; None if it has none."""
        entries = msgspec.to_builtins(self.entries, order="sorted")
        return {"components": entries} if entries else None

    def require_same_jsonl(self, known: Sequence[str], output: Path) -> None:
        """Raise if the shards were packed from other JSONLs, which may leave samples out."""
        if not known or self.jsonl_name in known:
            return
        before = [str(self.store.of(name).jsonl) for name in known]
        raise UsageError(
            f"{output}: was packed from {' and '.join(before)}, and {self.store.jsonl} is another "
            f"file, so nothing was written; give --jsonl {quoted(before[-1])}, or add "
            "--other-jsonl to pack its samples too"
        )

    def require_same_kind(self, base: Manifest, output: Path, progress: Progress) -> None:
        """Raise if the store's arrays were made otherwise than those of the shards that stay.

        Where that is not on record, say what is to be checked.
        """
        if not base.shards:
            return
        if not base.jsonls():
            progress.warn(
                f"{output}: which JSONL its shards were packed from is not recorded; if it was a "
                f"part of the store, check that {self.store.jsonl} holds no sample that was held "
                "out"
            )
        if names := consistency.unknown_settings(base, self.entries):
            progress.warn(
                f"{output}: how {' and '.join(names)} was made is recorded only for its shards or "
                "only for the store; check that it is the same"
            )
        if base.samples_of() != self.store.recipe:
            raise ProvenanceError(
                f"{output}: its samples are of another recipe, and nothing was written; pack all "
                "buckets again with --overwrite, or give another --output-dir"
            )
        if listed := consistency.other_settings(base, self.entries):
            raise ProvenanceError(
                f"{output}: its shards hold arrays made with other settings, and nothing was "
                f"written ({listed}); pack all buckets again with --overwrite, or give another "
                "--output-dir"
            )
