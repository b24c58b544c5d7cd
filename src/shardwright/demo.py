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

from shardwright import regular
from shardwright.buckets import Bucket
from shardwright.building import BuildSummary, build
from shardwright.deriving import DeriveSummary, derive
from shardwright.errors import UsageError
from shardwright.looking import look
from shardwright.packing import PackSummary, pack
from shardwright.progress import Progress
from shardwright.storage import files
from shardwright.storage.local import LocalPlace
from shardwright.store.store import find_recipe
from shardwright.summary import Summary
from shardwright.validate import integer
from shardwright.verifying import VerifyReport, verify

_MARKER = "MADE_BY_SHARDWRIGHT_DEMO"
_SIZES = 4  # of the recipe's buckets
# Pictures with which something is odd, so that ``look`` has something to show.
_WIDE, _SMALL, _LONG, _COPY = (17, 21), 18, 19, 20
_COPIED = 16
_CORNERS = ("upper left", "upper right", "lower left", "lower right")
_SHAPES = ("circle", "square", "triangle")
COLOURS = {
    "red": (214, 45, 38),
    "yellow": (245, 205, 55),
    "green": (45, 150, 70),
    "blue": (50, 85, 205),
    "purple": (140, 60, 165),
    "white": (244, 242, 238),
    "black": (28, 28, 34),
}


@dataclass(frozen=True)
class DemoSummary(Summary):
    """What the demo made, and what ``tarfile`` read back."""

    folder: str
    built: BuildSummary
    derived: DeriveSummary
    packed: PackSummary
    same: bool  # whether pack made the same tars as build
    verified: list[VerifyReport]  # the built shards, the store, and the packed ones against it
    first_sample: dict[str, str]
    samples_read: int
    tree: list[str]
    report: str  # what ``look`` shows, as one page

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts, lists and numbers, ready for JSON."""
        return {**super().to_dict(), "verified": [each.to_dict() for each in self.verified]}


def demo(
    *,
    folder: str | Path = "shardwright-demo",
    recipe: str | Path | None = None,
    pictures: int = 24,
    progress: Progress | None = None,
) -> DemoSummary:
    """Make pictures with captions; build shards, verify them and read them back.

    Then make the same shards the other way, with a store between.
    """
    integer("pictures", pictures, least=1)
    given = find_recipe(recipe)
    for component in given.recipe.components:
        if component.source == "elsewhere":
            fix = "give a recipe without it"
            raise given.error(component.name, "encoder", "is missing, so nothing makes it", fix)
    root = Path(folder)
    LocalPlace(root).require_writable()
    if root.exists() and not (root / _MARKER).exists() and any(root.iterdir()):
        raise UsageError("is not empty", path=root, fix="give a new folder")
    images, shards = root / "images", root / "shards"
    store, others = root / "derived", root / "packed"
    files.make_folder(images)
    files.write(root / _MARKER, b"shardwright demo may overwrite everything in this folder\n")
    for earlier in images.glob("demo*.*"):  # of a run with more pictures
        files.remove(earlier)
    sizes = given.recipe.buckets[:_SIZES]
    for number in range(pictures):
        _make_picture(images / f"demo{number:03}", sizes[number % len(sizes)], number)
    options: dict[str, Any] = {"recipe": recipe, "encoders": "sketch", "fit": "bucket"}
    again: dict[str, Any] = {"overwrite": True, "progress": progress}
    again["shard_size"] = max(5, pictures // 20)
    built = build(images, output_dir=shards, **options, **again)
    change: dict[str, Any] = {"update": True, "prune": True}  # if there is one of an earlier run
    derived = derive(images, derived_dir=store, **options, **change, progress=progress)
    packed = pack(derived_dir=store, output_dir=others, **again)
    verified = [
        verify(shards, read_data=True, against=images, progress=progress),
        verify(store, read_data=True, progress=progress),
        verify(others, read_data=True, against=store, progress=progress),
    ]
    first, count = _read_back(shards)
    report = root / "report.html"
    look(shards, images=images, report=report, progress=progress)
    return DemoSummary(
        folder=str(root),
        built=built,
        derived=derived,
        packed=packed,
        same=_tars(shards) == _tars(others),
        verified=verified,
        first_sample=first,
        samples_read=count,
        tree=_tree(shards),
        report=str(report),
    )


def _make_picture(path: Path, size: Bucket, number: int) -> None:
    """Paint a shape on a field, and write its caption beside it."""
    draw = random.Random(_COPIED if number == _COPY else number)
    colour, field = draw.sample(list(COLOURS), 2)
    shape = draw.choice(_SHAPES)
    width, height = size.width, size.height
    if number in _WIDE:
        width, height = height * 2, height * 2 // 3  # a panorama
    if number == _SMALL:
        width, height = width // 2, height // 2
    shade = np.linspace(0.85, 1.1, height)[:, None, None] * np.array(COLOURS[field])
    image = Image.fromarray(
        np.broadcast_to(shade.clip(0, 255), (height, width, 3)).astype(np.uint8)
    )
    paint = ImageDraw.Draw(image)
    half = int(min(width, height) * draw.uniform(0.28, 0.4))
    x, y = (int(side * draw.uniform(0.4, 0.6)) for side in (width, height))
    left, top, right, bottom = x - half, y - half, x + half, y + half
    if shape == "circle":
        paint.ellipse((left, top, right, bottom), fill=COLOURS[colour])
    elif shape == "square":
        paint.rectangle((left, top, right, bottom), fill=COLOURS[colour])
    else:
        paint.polygon([(left, bottom), (x, top), (right, bottom)], fill=COLOURS[colour])
    files.write(path.with_suffix(".jpg"), _jpeg(image))
    caption = f"a {colour} {shape} on a {field} field"
    if number == _LONG:
        rest = "there is no line, no dot and no letter, only more of it"
        caption += "".join(f"; in the {corner} corner {rest}" for corner in _CORNERS)
    files.write(path.with_suffix(".txt"), f"{caption}\n".encode())


def _read_back(shards: Path) -> tuple[dict[str, str], int]:
    """Read every member of every shard, and describe the first sample."""
    members: dict[str, bytes] = {}
    for path in sorted(shards.glob("bucket_*/shard-*.tar")):
        with regular.opened(path) as opened, tarfile.open(fileobj=opened) as tar:
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
    return first, len(samples)


def _tars(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): regular.read(path) for path in folder.glob("*/*.tar")}


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
