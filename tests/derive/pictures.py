"""Made-up pictures with captions, for tests."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shardwright.deriving import DeriveSummary, derive
from shardwright.encoders.base import Picture
from shardwright.layout import JSONL_NAME
from shardwright.recipes import SPECIFICATION
from shardwright.store import records

SIZES = ((96, 64), (64, 96), (80, 80))


def gradient(width: int, height: int, seed: int = 0) -> Picture:
    """Make a soft picture in which every corner has a colour of its own."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    blue = (np.sin((across + down) * 5 + seed) + 1) / 2
    return (np.stack([across, down, blue], axis=-1) * 255).round().astype(np.uint8)


def save(path: Path, picture: Picture, **options: Any) -> None:  # noqa: ANN401 - for Pillow
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path, **options)


def make_images(folder: Path, count: int = 6, sizes: tuple[tuple[int, int], ...] = SIZES) -> Path:
    """Make PNG images of several shapes, each with a caption beside it."""
    for number in range(count):
        save(folder / f"img{number:03}.png", gradient(*sizes[number % len(sizes)], seed=number))
        (folder / f"img{number:03}.txt").write_text(f"a soft gradient, number {number}\n")
    return folder


def make_bomb(path: Path, width: int, height: int) -> None:
    """Write a PNG of a few bytes that claims to be of any size."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    chunks = b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in (
            (b"IHDR", size + b"\x01\x00\x00\x00\x00"),
            (b"IDAT", zlib.compress(bytes(1000))),
            (b"IEND", b""),
        )
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def sketch(images: Path, derived_dir: Path, **options: Any) -> DeriveSummary:  # noqa: ANN401
    """Derive with the sketch encoders."""
    return derive(images, derived_dir=derived_dir, **{"encoders": "sketch", **options})


def store_records(derived_dir: Path) -> list[dict[str, Any]]:
    """Read the records of a store."""
    lines = (derived_dir / JSONL_NAME).read_bytes().splitlines()
    return [records.parse(line) for line in lines]


def array_path(derived_dir: Path, component: str, image_id: str) -> Path:
    folder = next(c.folder for c in SPECIFICATION.components if c.name == component)
    return derived_dir / folder / f"{image_id}.npy"
