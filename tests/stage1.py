"""Made-up Stage 1 data, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.layout import JSONL_NAME
from shardwright.recipes import SPECIFICATION

DINO = SPECIFICATION.components[0].inline[0]


def embedding(seed: int) -> list[float]:
    """Make an embedding whose values are float32, written as Python writes them."""
    values = np.random.default_rng(seed).standard_normal(1024, np.float32)
    return [float(value) for value in values]


def record(name: str, seed: int = 0, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Make a Stage 1 record; a field given as ``...`` is left out."""
    made = {
        "image_path": f"data/approved/{name}.jpg",
        DINO: embedding(seed),
        "caption": f"a picture of {name}",
        SPECIFICATION.masks[0].field: [1] * 9 + [0] * 68,
        "height": 1216,
        "width": 832,
    }
    return {field: value for field, value in (made | fields).items() if value is not ...}


def write(derived: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    """Write a Stage 1 JSONL of records, or of lines as they are."""
    derived.mkdir(parents=True, exist_ok=True)
    jsonl = derived / JSONL_NAME
    with jsonl.open("wb") as file:
        for line in lines:
            if isinstance(line, dict):
                line = json.dumps(line)
            file.write((line.encode() if isinstance(line, str) else line) + b"\n")
    return jsonl


def read(jsonl: Path) -> list[dict[str, Any]]:
    """Read all records of a JSONL."""
    return [json.loads(line) for line in jsonl.read_bytes().split(b"\n") if line]
