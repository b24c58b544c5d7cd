"""All steps on generated pictures, in seconds, without a download and without torch."""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from shardwright.buckets import Bucket
from shardwright.deriving import DeriveSummary, derive
from shardwright.encoders.sketch import decode
from shardwright.errors import UsageError
from shardwright.looking import look
from shardwright.packing import PackSummary, pack
from shardwright.progress import Progress
from shardwright.recipes import Component
from shardwright.storage import files
from shardwright.storage.local import require_writable
from shardwright.store.arrays import values
from shardwright.store.places import find_recipe
from shardwright.store.store import Store
from shardwright.summary import Summary
from shardwright.verifying import VerifyReport, verify

_MARKER = "MADE_BY_SHARDWRIGHT_DEMO"
_PICTURES = 24
_SIZES = 4  # of the recipe's buckets
# Pictures with which something is odd, so that ``look`` has something to show.
_WIDE, _SMALL, _LONG, _COPY = (17, 21), 18, 19, 20
_COPIED = 16
_RIDGES = ("first", "second", "third", "fourth", "fifth", "sixth")
_SUNS = {"red": (222, 60, 40), "golden": (250, 200, 60), "pale": (250, 245, 225)}
_SKIES = {"a blue sky": (90, 150, 220), "dusk": (120, 80, 130), "the morning": (240, 180, 140)}
_HILLS = {"green": (50, 110, 60), "dark": (35, 40, 60), "brown": (110, 80, 50)}


@dataclass(frozen=True)
class DemoSummary(Summary):
    """What the demo made, and what ``tarfile`` read back."""

    folder: str
    derived: DeriveSummary
    packed: PackSummary
    verified: list[VerifyReport]  # the store, and the shards compared with it
    first_sample: dict[str, str]
    samples_read: int
    tree: list[str]
    preview: str | None  # a decoded latent, if the recipe has one
    report: str  # what ``look`` shows, as one page

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts, lists and numbers, ready for JSON."""
        return {**super().to_dict(), "verified": [each.to_dict() for each in self.verified]}


def demo(
    *,
    folder: str | Path = "shardwright-demo",
    recipe: str | Path | None = None,
    progress: Progress | None = None,
) -> DemoSummary:
    """Make pictures with captions, derive, pack and verify them, and read the shards back."""
    given = find_recipe(recipe)
    for component in given.recipe.components:
        if component.source == "elsewhere":
            fix = "give a recipe without it"
            raise given.error(component.name, "encoder", "is missing, so nothing makes it", fix)
    root = Path(folder)
    require_writable(root)
    if root.exists() and not (root / _MARKER).exists() and any(root.iterdir()):
        raise UsageError("is not empty", path=root, fix="give a new folder")
    images, store, shards = root / "images", root / "derived", root / "shards"
    files.make_folder(images)
    files.write(root / _MARKER, b"shardwright demo may overwrite everything in this folder\n")
    sizes = given.recipe.buckets[:_SIZES]
    for number in range(_PICTURES):
        _make_picture(images / f"demo{number:03}", sizes[number % len(sizes)], number)
    derived = derive(
        images, recipe=recipe, derived_dir=store, encoders="sketch", fit="bucket", progress=progress
    )
    made = Store.at(store).recipe
    packed = pack(
        derived_dir=store, output_dir=shards, shard_size=5, overwrite=True, progress=progress
    )
    verified = [
        verify(store, read_data=True, progress=progress),
        verify(shards, read_data=True, against=store, progress=progress),
    ]
    latent = next((c for c in made.components if c.follows_picture and c.is_array), None)
    preview = root / "preview.jpg" if latent else None
    first, count = _read_back(shards, latent, preview)
    report = root / "report.html"
    look(shards, images=images, report=report, progress=progress)
    return DemoSummary(
        folder=str(root),
        derived=derived,
        packed=packed,
        verified=verified,
        first_sample=first,
        samples_read=count,
        tree=_tree(shards),
        preview=None if preview is None else str(preview),
        report=str(report),
    )


def _make_picture(path: Path, size: Bucket, number: int) -> None:
    """Paint a landscape, and write its caption beside it."""
    draw = random.Random(_COPIED if number == _COPY else number)
    (sky, air), (sun, light), (hills, ground) = (
        draw.choice(list(colours.items())) for colours in (_SKIES, _SUNS, _HILLS)
    )
    width, height = size.width, size.height
    if number in _WIDE:
        width, height = height * 2, height * 2 // 3  # a panorama
    if number == _SMALL:
        width, height = width // 2, height // 2
    shade = np.linspace(0.7, 1.2, height)[:, None, None] * np.array(air)
    image = Image.fromarray(
        np.broadcast_to(shade.clip(0, 255), (height, width, 3)).astype(np.uint8)
    )
    paint = ImageDraw.Draw(image)
    radius, x, y = width // 9, draw.randrange(width), draw.randrange(height // 3)
    paint.ellipse((x - radius, y, x + radius, y + 2 * radius), fill=light)
    for layer in range(3):
        top = height * (5 + layer) // 9
        steps = np.linspace(0, width, 80)
        waves = np.sin(steps / width * draw.uniform(3, 9) + draw.uniform(0, 6)) * height / 16
        ridge = [(float(a), top + float(b)) for a, b in zip(steps, waves, strict=True)]
        colour = tuple(channel * (4 - layer) // 4 for channel in ground)
        paint.polygon([(0, height), *ridge, (width, height)], fill=colour)
    files.write(path.with_suffix(".jpg"), _jpeg(image))
    caption = f"a {sun} sun over {hills} hills, {sky}"
    if number == _LONG:
        ridges = (f"; the {nth} ridge is darker than the sky, with trees on it" for nth in _RIDGES)
        caption += "".join(ridges)
    files.write(path.with_suffix(".txt"), f"{caption}\n".encode())


def _read_back(
    shards: Path, latent: Component | None, preview: Path | None
) -> tuple[dict[str, str], int]:
    """Read every member of every shard; describe the first sample and decode its latent."""
    members: dict[str, bytes] = {}
    for path in sorted(shards.glob("bucket_*/shard-*.tar")):
        with tarfile.open(path) as tar:
            members |= {each.name: file.read() for each in tar if (file := tar.extractfile(each))}
    samples = [name for name in members if name.endswith(".json")]
    key = samples[0].removesuffix("json")
    first = {samples[0]: members[samples[0]].decode()}
    for name, data in members.items():
        if not name.startswith(key) or name == samples[0]:
            continue
        if not name.endswith(".npy"):
            first[name] = f"{len(data):,} bytes"
            continue
        array = np.load(io.BytesIO(data), allow_pickle=False)
        first[name] = f"{array.dtype} {array.shape}"
        if latent and preview and name == key + latent.suffix:
            picture = decode(values(array, latent), latent)
            files.write(preview, _jpeg(Image.fromarray(picture)))
    return first, len(samples)


def _jpeg(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "jpeg", quality=90)
    return out.getvalue()


def _tree(folder: Path) -> list[str]:
    lines = []
    for bucket in sorted(folder.glob("bucket_*")):
        lines.append(f"{bucket.name}/")
        lines += [f"  {path.name}  {path.stat().st_size:,}" for path in sorted(bucket.iterdir())]
    return lines
