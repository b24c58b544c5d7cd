"""Made-up stores of any size, kept between runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from shardwright import schema
from shardwright.buckets import BUCKETS, Bucket


def _record(number: int, bucket: Bucket) -> str:
    image_id = f"{number:032x}"
    record = {
        "image_id": image_id,
        "image_path": f"data/approved/{image_id}.jpg",
        "caption": f"a photograph of something worth training on, number {number}, in soft light",
        schema.MASK.field: [1] * 20 + [0] * 57,
        "height": bucket.height,
        "width": bucket.width,
        "aspect_bucket": str(bucket),
        "format_version": schema.FORMAT_VERSION,
    }
    return json.dumps(record) + "\n"


def real_store(folder: Path, samples: int) -> Path:
    """Make a store whose arrays have their true sizes, each file its own: 0.65 MB a sample."""
    store = folder / f"store-{samples}"
    if (store / schema.JSONL_NAME).exists():
        return store
    import numpy as np  # not sooner: the runner's own size is the least a contestant can show

    noise = np.random.default_rng(0).integers(0, 30000, 1 << 20, dtype=np.uint16)
    for component in schema.COMPONENTS:
        (store / component.folder).mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(samples):
        bucket = BUCKETS[number % 4]
        lines.append(_record(number, bucket))
        for component in schema.COMPONENTS:
            shape = component.shape_for(bucket.width, bucket.height)
            words = component.nbytes(shape) // 2
            array = noise[number % 1000 : number % 1000 + words].view(component.dtype)
            np.save(store / component.folder / f"{number:032x}.npy", array.reshape(shape))
    (store / schema.JSONL_NAME).write_text("".join(lines))
    return store


def linked_store(folder: Path, samples: int) -> Path:
    """Make a store of very many records whose arrays are hard links to a few small files."""
    store = folder / f"linked-{samples}"
    if (store / schema.JSONL_NAME).exists():
        return store
    import numpy as np

    for component in schema.COMPONENTS:
        place = store / component.folder
        place.mkdir(parents=True, exist_ok=True)
        array = np.zeros(component.shape_for(64, 64), component.dtype)
        for number in range(samples):
            if number % 50_000 == 0:  # a file can have only so many names
                source = place / f"source{number}"
                with source.open("wb") as file:
                    np.save(file, array)
            os.link(source, place / f"{number:032x}.npy")
    with (store / schema.JSONL_NAME).open("w") as file:
        for number in range(samples):
            file.write(_record(number, BUCKETS[number % 4]))
    return store


def stage1_file(folder: Path, samples: int) -> Path:
    """Make a Stage 1 store: a JSONL with inline embeddings."""
    store = folder / f"stage1-{samples}"
    path = store / schema.JSONL_NAME
    if path.exists():
        return store
    import numpy as np

    store.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).normal(size=(1000, 1024)).astype(np.float32)
    inline = [json.dumps([float(value) for value in row]) for row in noise]
    with path.open("w") as file:
        for number in range(samples):
            record = json.loads(_record(number, BUCKETS[number % 4]))
            for field in ("image_id", "aspect_bucket", "format_version"):
                del record[field]
            line = json.dumps(record)[:-1]
            file.write(f'{line}, "dinov3_embedding": {inline[number % 1000]}}}\n')
    return store


def remove(path: Path) -> None:
    """Remove what a contestant wrote, and wait until the disk is idle again."""
    shutil.rmtree(path, ignore_errors=True)
    os.sync()
