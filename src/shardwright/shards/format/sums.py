"""The SHA-256 of each shard in one file, for ``sha256sum -c``."""

from __future__ import annotations

from shardwright.layout import STATE_FOLDER
from shardwright.shards.format.manifest import Manifest
from shardwright.storage import files
from shardwright.storage.urls import Location

SHA256_NAME = "SHA256SUMS"


def save_sha256(output_dir: Location, manifest: Manifest) -> None:
    """Write the file for ``sha256sum -c``, or remove it if a digest is unknown."""
    path = output_dir / STATE_FOLDER / SHA256_NAME
    data = sha256_sums(manifest)
    if data is None:
        files.withdraw(path)
    else:
        files.write(path, data)


def sha256_sums(manifest: Manifest) -> bytes | None:
    """List the digests as ``sha256sum -c`` reads them; None if one is unknown, or none is there."""
    if not manifest.shards or any(entry.sha256 is None for entry in manifest.shards):
        return None
    return "".join(f"{entry.sha256}  {entry.path}\n" for entry in manifest.shards).encode()
