"""A small valid store, and the means to damage it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDERS = {"dinov3": "dinov3", "vae": "vae_latents", "t5": "t5_hidden"}
SIZES = ((64, 64), (96, 64))  # width and height: small pictures make quick tests

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SmallStore:
    """A store on disk."""

    root: Path

    @property
    def jsonl(self) -> Path:
        return self.root / "approved_image_dataset.jsonl"

    def array(self, component: str, image_id: str) -> Path:
        return self.root / FOLDERS[component] / f"{image_id}.npy"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.jsonl.read_bytes().splitlines()]

    def write(self, records: list[dict[str, Any]]) -> None:
        self.jsonl.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))

    def change(self, position: int, **fields: Any) -> None:  # noqa: ANN401
        """Replace fields of one record; None removes a field."""
        records = self.records()
        changed = records[position] | fields
        records[position] = {name: value for name, value in changed.items() if value is not None}
        self.write(records)

    def append(self, line: bytes) -> None:
        with self.jsonl.open("ab") as file:
            file.write(line)

    def save(self, component: str, image_id: str, array: Array) -> None:
        self.array(component, image_id).write_bytes(npy(array))


def npy(array: Array, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def arrays(width: int, height: int, seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    return {
        "dinov3": draw.standard_normal(1024).astype("<f4"),
        "vae": draw.standard_normal((16, height // 8, width // 8)).astype("<f2"),
        "t5": draw.standard_normal((77, 1024)).astype("<f2"),
    }


def record(image_id: str, width: int, height: int) -> dict[str, Any]:
    return {
        "image_id": image_id,
        "image_path": f"data/approved/{image_id}.jpg",
        "caption": f"a picture of {image_id}",
        "t5_attention_mask": [1] * 6 + [0] * 71,
        "height": height,
        "width": width,
        "aspect_bucket": f"{width}x{height}",
        "format_version": 2,
    }


def small_store(root: Path, samples: int = 4) -> SmallStore:
    """Write a store of samples ``img0``, ``img1``, ... in two buckets that take turns."""
    store = SmallStore(root)
    for folder in FOLDERS.values():
        (root / folder).mkdir(parents=True)
    records = []
    for number in range(samples):
        width, height = SIZES[number % 2]
        records.append(record(f"img{number}", width, height))
        for component, array in arrays(width, height, number).items():
            store.save(component, f"img{number}", array)
    store.write(records)
    return store
