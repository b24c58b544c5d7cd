"""Reading shards back with nothing but tarfile and json, for tests."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

Members = list[tuple[str, bytes]]


def read_members(path: Path) -> Members:
    """Give the names and bytes of a tar's members, in order; all must be regular files."""
    found = []
    with tarfile.open(path) as tar:
        for member in tar:
            assert member.isreg(), member
            file = tar.extractfile(member)
            assert file is not None
            found.append((member.name, file.read()))
    return found


def shards(output: Path) -> list[Path]:
    """List every shard below an output folder, by name."""
    return sorted(output.glob("bucket_*/shard-*.tar"))


def ids(path: Path) -> list[str]:
    """Give the image_ids of a shard, in order."""
    with tarfile.open(path) as tar:
        files = (tar.extractfile(member) for member in tar if member.name.endswith(".json"))
        return [json.load(file)["image_id"] for file in files if file is not None]


def ids_by_shard(output: Path) -> dict[str, list[str]]:
    """Give the image_ids of every shard, by ``bucket_WxH/shard-NNNNNN.tar``."""
    return {str(path.relative_to(output)): ids(path) for path in shards(output)}


def all_ids(output: Path) -> list[str]:
    """Give the image_ids of all shards."""
    return [image_id for found in ids_by_shard(output).values() for image_id in found]


def digests(output: Path) -> dict[str, str]:
    """Give the sha256 of every file below an output folder but the lock, which names its holder."""
    return {
        name: hashlib.sha256((output / name).read_bytes()).hexdigest()
        for name in listing(output)
        if (output / name).is_file() and name != ".shardwright/lock"
    }


def listing(folder: Path) -> list[str]:
    """Give the names of everything below a folder, sorted; folders too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
