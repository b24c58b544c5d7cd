"""The whole flow on made-up data, in seconds and without a download."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from shardwright import files, schema
from shardwright.buckets import BUCKETS, Bucket
from shardwright.errors import UsageError
from shardwright.pack import PackSummary, pack
from shardwright.progress import Progress

_MARKER = "MADE_BY_SHARDWRIGHT_DEMO"
_SAMPLES = 24
_WORDS = ("a red kite", "two cats", "an old harbour", "rain on glass", "a paper boat", "the moon")


@dataclass(frozen=True)
class DemoSummary:
    """What the demo made, and what reading it back with nothing but ``tarfile`` showed."""

    folder: Path
    packed: PackSummary
    first_sample: dict[str, str]
    samples_read: int
    tree: list[str]


def demo(
    *, folder: str | Path = "shardwright-demo", progress: Progress | None = None
) -> DemoSummary:
    """Make a small store, pack it, and read the shards back."""
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root}: is not a folder; give the demo a folder of its own")
    if root.exists() and not (root / _MARKER).exists() and any(root.iterdir()):
        raise UsageError(f"{root}: is not empty; give the demo a folder of its own")
    files.make_folder(root)
    files.write_whole(root / _MARKER, b"shardwright demo may overwrite everything in this folder\n")
    _make_store(root / "derived")
    packed = pack(
        derived_dir=root / "derived",
        output_dir=root / "shards",
        shard_size=5,
        overwrite=True,
        progress=progress,
    )
    first, count = _read_back(root / "shards")
    return DemoSummary(root, packed, first, count, _tree(root / "shards"))


def _make_store(derived: Path) -> None:
    for component in schema.COMPONENTS:
        files.make_folder(derived / component.folder)
    lines = []
    for number in range(_SAMPLES):
        bucket = BUCKETS[number % 4]
        image_id = f"demo{number:03}"
        caption = f"{_WORDS[number % len(_WORDS)]}, picture {number}"
        tokens = 2 + len(caption.split())
        record = {
            "image_id": image_id,
            "image_path": f"data/approved/{image_id}.jpg",
            "caption": caption,
            schema.MASK.field: [1] * tokens + [0] * (schema.MASK.length - tokens),
            "height": bucket.height,
            "width": bucket.width,
            "aspect_bucket": str(bucket),
            "format_version": schema.FORMAT_VERSION,
        }
        lines.append(msgspec.json.encode(record))
        for component in schema.COMPONENTS:
            path = derived / component.folder / f"{image_id}.npy"
            files.write_whole(path, _array(component, bucket, number))
    files.write_whole(derived / schema.JSONL_NAME, b"\n".join(lines) + b"\n")


def _array(component: schema.Component, bucket: Bucket, number: int) -> bytes:
    """Make an array of the right shape: a wave whose length tells the samples apart."""
    shape = component.shape_for(bucket.width, bucket.height)
    wave = np.sin(np.arange(np.prod(shape), dtype=np.float32) / (10 + number))
    out = io.BytesIO()
    np.save(out, wave.reshape(shape).astype(component.dtype))
    return out.getvalue()


def _read_back(shards: Path) -> tuple[dict[str, str], int]:
    """Read every member of every shard; describe the first sample."""
    first: dict[str, str] = {}
    count = 0
    for path in sorted(shards.glob("bucket_*/shard-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                data = file.read()
                if member.name.endswith(".npy"):
                    array = np.load(io.BytesIO(data), allow_pickle=False)
                    text = f"{array.dtype} {array.shape}"
                else:
                    text = data.decode()
                    count += 1
                if count == 1:
                    first[member.name] = text
    return first, count


def _tree(folder: Path) -> list[str]:
    lines = []
    for bucket in sorted(folder.glob("bucket_*")):
        lines.append(f"{bucket.name}/")
        lines += [f"  {path.name}  {path.stat().st_size:,}" for path in sorted(bucket.iterdir())]
    return lines
