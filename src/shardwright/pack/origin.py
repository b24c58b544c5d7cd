"""Where the samples of a run come from, and whether they may lie beside those of earlier runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shardwright.errors import ProvenanceError, UsageError
from shardwright.schema import STATE_FOLDER
from shardwright.shards import manifest
from shardwright.shards.manifest import Manifest
from shardwright.store import provenance


@dataclass(frozen=True)
class Origin:
    """What a manifest records of the store that was packed."""

    derived_dir: Path
    jsonl: Path
    provenance: Any  # whatever the store says of itself

    @property
    def jsonl_name(self) -> str:
        """Spell the JSONL as a run records it."""
        return manifest.jsonl_name(self.jsonl, self.derived_dir)

    def require_same_jsonl(self, base: Manifest, output: Path) -> None:
        """Raise if the shards were packed from other JSONLs, which may leave samples out."""
        known = sorted(name for name in base.jsonls() if name is not None)
        if not known or self.jsonl_name in known:
            return
        before = [manifest.jsonl_path(name, self.derived_dir) for name in known]
        raise UsageError(
            f"{output}: was packed from {' and '.join(before)}, and {self.jsonl} is another file, "
            f"so nothing was written; give --jsonl {shlex.quote(before[-1])}, or --other-jsonl if "
            "that is meant"
        )

    def require_same_kind(self, base: Manifest, output: Path) -> None:
        """Raise if the store's arrays were made otherwise than those of the shards that stay."""
        now = provenance.settings_in(self.provenance)
        for number in base.by_run():
            before = provenance.settings_in(base.runs[number].provenance)
            changed, listed = provenance.differences(before, now)
            if changed:
                raise ProvenanceError(
                    f"{output}: its shards hold arrays made with other settings, and nothing was "
                    f"written ({listed}); pack all buckets again with --overwrite, or give another "
                    "--output-dir"
                )


def read_origin(derived_dir: Path, jsonl: Path) -> Origin:
    """Read what a store says of itself; None where it says nothing that can be read."""
    try:
        data = (derived_dir / STATE_FOLDER / provenance.NAME).read_bytes()
        document = msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError):
        document = None
    return Origin(derived_dir, jsonl, document)
