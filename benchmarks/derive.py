"""``python -m benchmarks.derive``: how well derive keeps an encoder busy.

The encoders only sleep, as long as a GPU would work, so what is measured is everything around them:
reading, preparing, batching, checking, and making it durable. Beside it, on the same images: the
encoders alone on inputs that are ready, which nothing can beat, and the loop that one would write
first, one image at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

import shardwright
from shardwright.buckets import nearest
from shardwright.derive.encoders.base import Options, Picture, Tokens
from shardwright.derive.encoders.sketch import load
from shardwright.schema import COMPONENTS, Component
from shardwright.workers import cores

DINO, VAE, T5 = COMPONENTS
OVERHEAD = 0.004  # seconds that every call costs a device, however small the batch
PER_IMAGE = {DINO: 0.005, VAE: 0.080, T5: 0.003}  # about what a current card takes at 1024x1024
SIDE = 224


class Sleeper:
    """Takes as long as a GPU and gives zeros; counts the time in which it was at work."""

    device = "none"

    def __init__(self, component: Component) -> None:
        self.component = component
        self.busy = 0.0

    def encode(self, batch: NDArray[Any], mask: NDArray[Any] | None = None) -> NDArray[Any]:
        began = time.perf_counter()
        time.sleep(OVERHEAD + len(batch) * PER_IMAGE[self.component])
        shape = self.component.shape_for(batch.shape[-2], batch.shape[-3] if batch.ndim > 3 else 0)
        made = np.zeros((len(batch), *shape), np.float16)
        self.busy += time.perf_counter() - began
        return made.astype(self.component.dtype, copy=False)

    def describe(self) -> dict[str, Any]:
        return {"encoder": "sleeper"}


class DinoSleeper(Sleeper):
    def prepare(self, picture: Picture) -> NDArray[Any]:
        small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return np.asarray(small, np.float32) / 255


class VaeSleeper(Sleeper):
    def prepare(self, picture: Picture) -> NDArray[Any]:
        return picture


class TextSleeper(Sleeper):
    words: Any = load(T5, Options())

    def prepare(self, caption: str) -> Tokens:
        tokens: Tokens = self.words.prepare(caption)
        return tokens


def sleepers() -> dict[str, Any]:
    return {"dinov3": DinoSleeper(DINO), "vae": VaeSleeper(VAE), "t5": TextSleeper(T5)}


def idle(encoders: dict[str, Any], seconds: float) -> float:
    """Give the part of the time in which no encoder was at work, for whatever reason."""
    return float(1 - sum(encoder.busy for encoder in encoders.values()) / seconds)


def make_images(folder: Path, count: int) -> None:
    """Make JPEGs of about a megapixel with some detail, in the shapes of three buckets."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(count):
        width, height = ((1024, 1024), (832, 1216), (1216, 832))[number % 3]
        coarse = random.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:05}.jpg", quality=92)
        (folder / f"{number:05}.txt").write_text(f"benchmark picture number {number}")


def ours(images: Path, out: Path, batch_size: int) -> tuple[float, float]:
    """Derive; give the part of the time in which the encoders were not at work."""
    encoders = sleepers()
    began = time.perf_counter()
    summary = shardwright.derive(
        images, derived_dir=out, encoders=encoders, fit="bucket", batch_size=batch_size
    )
    seconds = time.perf_counter() - began
    assert summary.failed == 0
    return seconds, idle(encoders, seconds)


def encoders_alone(images: Path, out: Path, batch_size: int) -> tuple[float, float]:
    """Only encode, in full batches, from inputs that are ready."""
    encoders, count = sleepers(), len(list(images.glob("*.jpg")))
    picture = np.zeros((1024, 1024, 3), np.uint8)
    pictures = [encoders[name].prepare(picture) for name in ("dinov3", "vae")]
    inputs = [np.stack([prepared] * batch_size) for prepared in pictures]
    inputs.append(np.zeros((batch_size, 77), np.int64))
    began = time.perf_counter()
    for first in range(0, count, batch_size):
        for encoder, batch in zip(encoders.values(), inputs, strict=True):
            encoder.encode(batch[: count - first])
    return time.perf_counter() - began, 0.0


def plain_loop(images: Path, out: Path, batch_size: int) -> tuple[float, float]:
    """Do what one would write first: one image after the other, nothing synced."""
    encoders = sleepers()
    for component in COMPONENTS:
        (out / component.folder).mkdir(parents=True)
    began = time.perf_counter()
    with open(out / "records.jsonl", "w") as records:
        for path in sorted(images.glob("*.jpg")):
            with Image.open(path) as opened:
                image = ImageOps.exif_transpose(opened).convert("RGB")
            bucket = nearest(*image.size)
            picture = np.array(image)
            fitted = np.array(ImageOps.fit(image, (bucket.width, bucket.height)))
            tokens = encoders["t5"].prepare(path.with_suffix(".txt").read_text())
            made = {
                DINO: encoders["dinov3"].encode(encoders["dinov3"].prepare(picture)[None]),
                VAE: encoders["vae"].encode(fitted[None]),
                T5: encoders["t5"].encode(tokens.ids[None]),
            }
            for component, arrays in made.items():
                np.save(out / component.folder / f"{path.stem}.npy", arrays[0])
            record = {"image_id": path.stem, "t5_attention_mask": tokens.mask.tolist()}
            records.write(json.dumps(record) + "\n")
    seconds = time.perf_counter() - began
    return seconds, idle(encoders, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.derive", description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    contestants: dict[str, Callable[[Path, Path, int], tuple[float, float]]] = {
        "limit: encoders alone": encoders_alone,
        "shardwright": ours,
        "plain loop": plain_loop,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    waited: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory(prefix="shardwright-bench-") as folder:
        images = Path(folder) / "images"
        make_images(images, options.images)
        for number in range(options.rounds):
            for name, contestant in contestants.items():
                took, unused = contestant(
                    images, Path(folder) / f"{name}{number}", options.batch_size
                )
                seconds[name].append(took)
                waited[name].append(unused)
    print(f"{options.images} images, batches of {options.batch_size}, {cores()} cores")
    print(f"{'':<24}{'median s':>9}{'spread':>14}{'images/s':>10}{'to limit':>10}{'idle':>7}")
    limit = statistics.median(seconds["limit: encoders alone"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(
            f"{name:<24}{median:>9.2f}{f'{min(times):.2f}-{max(times):.2f}':>14}"
            f"{options.images / median:>10.1f}{limit / median:>10.2f}"
            f"{statistics.median(waited[name]):>7.1%}"
        )


if __name__ == "__main__":
    main()
