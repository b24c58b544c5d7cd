"""Stores of other recipes, written with NumPy, Pillow and the json module, not with our own code.

``VARIED`` has one component of each kind: a latent, trimmed text, a bfloat16 vector, an array with
a free axis, and a picture. ``SDXL`` is laid out like Stable Diffusion XL, only smaller.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from shardwright import pack
from shardwright.buckets import Bucket
from shardwright.recipes import Component, Mask, Recipe, Side
from tests.store.small import SIZES, Array, npy

TOKENS = 12
BUCKETS = tuple(Bucket(*size) for size in SIZES)
_SIDES = (Side("height", 8), Side("width", 8))
MASK = Mask("t5_mask", "t5_mask.npy", TOKENS)
VARIED = Recipe(
    components=(
        Component("vae", "latents", "vae.npy", "<f2", (4, *_SIDES), encoder="autoencoder"),
        Component(
            *("t5", "t5", "t5.npy", "<f2", (TOKENS, 6), (), "caption", MASK),
            trim=True,
            encoder="t5",
            settings={"tokens": TOKENS},
        ),
        Component("pooled", "pooled", "pooled.npy", "bfloat16", (5,), (), "caption"),
        Component("pose", "pose", "pose.npy", "<f4", ("any", 3), source="elsewhere"),
        Component(
            *("picture", "picture", "picture.webp", "|u1"),
            (Side("height", 1), Side("width", 1), 3),
            encoder="picture",
            settings={"format": "webp", "quality": 95},
        ),
    ),
    buckets=BUCKETS,
    fit="bucket",
)
SDXL = Recipe(
    components=(
        Component("vae", "vae", "vae.npy", "<f2", (4, *_SIDES), encoder="autoencoder"),
        *(
            Component(name, name, f"{name}.npy", dtype, shape, (), "caption", encoder="clip")
            for name, dtype, shape in (
                ("clip-l", "<f2", (7, 3)),
                ("clip-g", "<f2", (7, 5)),
                ("clip-l-pooled", "<f4", (3,)),
                ("clip-g-pooled", "<f4", (5,)),
            )
        ),
    ),
    buckets=BUCKETS,
)
PROVENANCE = {
    "components": {
        "vae": {
            "settings": {"model": "a/vae", "scaling_factor": 0.13, "shift_factor": None},
            "tool": "shardwright",
        },
        "t5": {"settings": {"model": "a/t5", "dtype": "bfloat16"}, "tool": "shardwright"},
    }
}


def kept(number: int) -> int:
    """Count the tokens of a caption."""
    return 1 + number * 5 % TOKENS


def bits(values: Array) -> Array:
    """Give the upper halves of float32 values: bfloat16, cut off."""
    found: Array = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return found


def exact(values: Array) -> Array:
    """Give the float32 values that are left of them in bfloat16."""
    found: Array = (bits(values).astype("<u4") << 16).view("<f4")
    return found


def arrays(number: int, recipe: Recipe = VARIED) -> dict[str, Array]:
    """Make the arrays of a sample, by suffix; number -1 is the empty caption."""
    draw, (width, height) = np.random.default_rng(number + 1), SIZES[number % 2]
    found = {}
    for component in recipe.components:
        if not component.is_array:
            continue
        shape = list(component.shape_for(width, height))
        if component.trim:
            shape[0] = kept(number)
        if "any" in component.shape:
            shape[0] = 1 + number * 3 % 5
        values = draw.standard_normal(shape)
        plain = component.dtype != "bfloat16"
        found[component.suffix] = values.astype(component.dtype) if plain else exact(values)
        if component.mask:
            found[component.mask.suffix] = mask(number)
    return found


def mask(number: int) -> Array:
    return np.array([1] * kept(number) + [0] * (TOKENS - kept(number)), np.uint8)


def picture(number: int) -> bytes:
    width, height = SIZES[number % 2]
    values = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "webp", quality=95)
    return file.getvalue()


def varied_store(root: Path, samples: int = 10, recipe: Recipe = VARIED) -> Path:
    """Write a store of samples ``img0``, ``img1``, ... in two buckets that take turns."""
    (root / ".shardwright/empty").mkdir(parents=True)
    (root / ".shardwright/recipe.json").write_bytes(msgspec.json.encode(recipe))
    (root / ".shardwright/provenance.json").write_text(json.dumps(PROVENANCE))
    for component in recipe.components:
        (root / component.folder).mkdir()
    add(root, range(samples), recipe)
    write_empty(root, recipe)
    return root


def add(root: Path, numbers: range, recipe: Recipe = VARIED) -> None:
    """Add samples to a store."""
    lines = []
    for number in numbers:
        width, height = SIZES[number % 2]
        made = arrays(number, recipe)
        record: dict[str, Any] = {
            "image_id": f"img{number}",
            "image_path": f"data/approved/img{number}.jpg",
            "caption": f"a picture of img{number}",
            **{m.field: made[m.suffix].tolist() for m in recipe.masks},
            "height": height,
            "width": width,
            "aspect_bucket": f"{width}x{height}",
            "format_version": 2,
        }
        lines.append(json.dumps(record) + "\n")
        for component in recipe.components:
            path = root / component.folder / f"img{number}{component.extension}"
            path.write_bytes(
                stored(made[component.suffix], component) if component.is_array else picture(number)
            )
    with (root / "approved_image_dataset.jsonl").open("a") as file:
        file.writelines(lines)


def write_empty(root: Path, recipe: Recipe = VARIED) -> None:
    """Write what a store has for the empty caption."""
    made = arrays(-1, recipe)
    for component in recipe.captions:
        data = {component.suffix: stored(made[component.suffix], component)}
        if component.mask:
            data[component.mask.suffix] = npy(made[component.mask.suffix])
        for suffix, content in data.items():
            (root / ".shardwright/empty" / suffix).write_bytes(content)


def stored(array: Array, component: Component) -> bytes:
    """Give the file of an array."""
    return npy(bits(array) if component.dtype == "bfloat16" else array)


def packed(root: Path, samples: int = 10, recipe: Recipe = VARIED) -> Path:
    """Pack such a store; give the folder of the shards."""
    store = varied_store(root / "derived", samples, recipe)
    pack(derived_dir=store, output_dir=root / "shards", shard_size=4, workers=1)
    return root / "shards"
