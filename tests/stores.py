"""Small Stage 2 stores for tests, written with NumPy and the json module, not with our own code."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]
Shape = tuple[int, ...]

BUCKET = "1024x1024"
FOLDERS = {"dinov3": "dinov3", "vae": "vae_latents", "t5": "t5_hidden"}
DTYPES = {"dinov3": "<f4", "vae": "<f2", "t5": "<f2"}
SMALL_LATENT: Shape = (16, 2, 3)  # any height and width make a valid latent, and this is quick
MASK = [1] * 9 + [0] * 68


@dataclass(frozen=True)
class Store:
    """A store on disk, and the records its JSONL was written from."""

    root: Path
    records: list[Record]

    @property
    def jsonl(self) -> Path:
        return self.root / "approved_image_dataset.jsonl"

    def array(self, component: str, image_id: str) -> Path:
        return self.root / FOLDERS[component] / f"{image_id}.npy"

    def write_lines(self, lines: Iterable[bytes]) -> None:
        self.jsonl.write_bytes(b"".join(line + b"\n" for line in lines))

    def append(self, *lines: bytes) -> None:
        with self.jsonl.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def members(self, record: Record) -> list[tuple[str, bytes]]:
        """What a shard must hold of an ordinary sample: names and bytes, in order."""
        image_id = record["image_id"]
        fields = {name: value for name, value in record.items() if name != "t5_attention_mask"}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        mask = np.array(record["t5_attention_mask"], dtype=np.uint8)
        return [
            (f"{image_id}.json", text.encode()),
            (f"{image_id}.dinov3.npy", self.array("dinov3", image_id).read_bytes()),
            (f"{image_id}.vae.npy", self.array("vae", image_id).read_bytes()),
            (f"{image_id}.t5h.npy", self.array("t5", image_id).read_bytes()),
            (f"{image_id}.t5m.npy", npy(mask)),
        ]


def record(image_id: str, bucket: str = BUCKET, **fields: Any) -> Record:  # noqa: ANN401
    """Make a complete record; give fields to replace some of it."""
    width, height = map(int, bucket.split("x")) if bucket.count("x") == 1 else (64, 64)
    return {
        "image_id": image_id,
        "image_path": f"data/approved/{image_id}.jpg",
        "caption": f"a picture of {image_id}",
        "t5_attention_mask": MASK,
        "height": height,
        "width": width,
        "aspect_bucket": bucket,
        "format_version": 2,
        **fields,
    }


def records(count: int, bucket: str = BUCKET, prefix: str = "img") -> list[Record]:
    """Make complete records with ids in order."""
    return [record(f"{prefix}{number:05}", bucket) for number in range(count)]


def line(fields: Mapping[str, Any]) -> bytes:
    """Write one line of a JSONL file, without its line end."""
    return json.dumps(fields, ensure_ascii=False).encode()


def npy(array: np.ndarray[Any, Any], **options: bool) -> bytes:
    """Give the bytes of a ``.npy`` file as NumPy writes it."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npy_header(dtype: object, shape: Shape, fortran_order: bool = False) -> bytes:
    """Give the header that NumPy writes for any such array, however large."""
    file = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def array(component: str, image_id: str, latent: Shape = SMALL_LATENT) -> np.ndarray[Any, Any]:
    """Make an array whose contents tell which component of which sample it is."""
    shape = {"dinov3": (1024,), "vae": latent, "t5": (77, 1024)}[component]
    seed = zlib.crc32(f"{component}/{image_id}".encode())
    values = np.random.default_rng(seed).random(int(np.prod(shape)), dtype=np.float32)
    return values.reshape(shape).astype(DTYPES[component])


def make_store(
    root: Path,
    samples: Iterable[Record],
    *,
    latent: Shape | Callable[[Record], Shape] = SMALL_LATENT,
    share: Collection[str] = (),
    skip_arrays_of: Collection[str] = (),
) -> Store:
    """Write a store.

    Components in ``share`` are hard links to one file, for stores of thousands; the others differ
    from sample to sample. ``skip_arrays_of`` names ids that get no arrays, such as hostile ones.
    """
    store = Store(root, list(samples))
    for folder in FOLDERS.values():
        (root / folder).mkdir(parents=True, exist_ok=True)
    store.write_lines(line(fields) for fields in store.records)
    for component in FOLDERS:
        shared = root / f"shared-{component}.npy"
        if component in share:
            shared.write_bytes(npy(array(component, "shared")))
        for fields in store.records:
            image_id = fields["image_id"]
            path = store.array(component, image_id)
            if image_id in skip_arrays_of or path.exists():
                continue
            if component in share:
                os.link(shared, path)
            else:
                shape = latent(fields) if callable(latent) else latent
                path.write_bytes(npy(array(component, image_id, shape)))
        shared.unlink(missing_ok=True)
    return store
