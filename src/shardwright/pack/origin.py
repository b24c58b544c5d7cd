"""Where the samples of a run come from, and whether they may lie beside those of earlier runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shardwright.errors import ProvenanceError
from shardwright.schema import STATE_FOLDER
from shardwright.shards.manifest import Manifest
from shardwright.store import provenance


@dataclass(frozen=True)
class Origin:
    """What a manifest records of the store that was packed."""

    provenance: Any  # whatever the store says of itself

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


def read_origin(derived_dir: Path) -> Origin:
    """Read what a store says of itself; None where it says nothing that can be read."""
    try:
        data = (derived_dir / STATE_FOLDER / provenance.NAME).read_bytes()
        return Origin(msgspec.json.decode(data))
    except (OSError, msgspec.MsgspecError):
        return Origin(None)
