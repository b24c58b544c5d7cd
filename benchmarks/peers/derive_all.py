"""Derive a store from images by one way, with encoders that sleep as long as a GPU would work.

Prints the seconds, the part of them in which no encoder was at work, for whatever reason, and how
many images a batch of the VAE held on average.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

import shardwright
from shardwright.encoders.base import Options, Picture, Tokens
from shardwright.encoders.sketch import load
from shardwright.recipes import SPECIFICATION, Component

try:
    from shardwright.encoders.base import Pixels, Prepares, Preprocessing
except ImportError:  # the source of an earlier commit, in which only methods prepare
    from importlib import import_module

    vision: Any = import_module("shardwright.encoders.vision")

    class Prepares:  # type: ignore[no-redef]
        preparing: Any

        def prepare(self, picture: Picture) -> NDArray[Any]:
            made: NDArray[Any] = self.preparing(picture)
            return made

    class Pixels:  # type: ignore[no-redef]
        def __call__(self, picture: Picture) -> Picture:
            return picture

    def Preprocessing(*given: Any, rounded: bool) -> Any:  # type: ignore[no-redef]  # noqa: N802, ANN401
        return partial(vision.Preprocessing(*given).apply, rounded=rounded)


BATCH = 8
DINO, VAE, T5 = SPECIFICATION.components
OVERHEAD = 0.004  # seconds that every call costs a device, however small the batch
SIDE = 224


class Sleeper:
    """Takes as long as a GPU and gives zeros; counts the time in which it was at work."""

    device = "none"

    def __init__(self, component: Component, per_image: float) -> None:
        self.component, self.per_image = component, per_image
        self.busy = 0.0
        self.batches: list[int] = []

    def encode(self, batch: NDArray[Any], mask: NDArray[Any] | None = None) -> NDArray[Any]:
        began = time.perf_counter()
        self.batches.append(len(batch))
        time.sleep(OVERHEAD + len(batch) * self.per_image * self.part(batch))
        shape = self.component.shape_for(batch.shape[-2], batch.shape[-3] if batch.ndim > 3 else 0)
        made = np.zeros((len(batch), *shape), np.float16)
        self.busy += time.perf_counter() - began
        return made.astype(self.component.dtype, copy=False)

    def part(self, batch: NDArray[Any]) -> float:
        """Say which part of the usual work one input is."""
        return 1.0

    def describe(self) -> dict[str, Any]:
        return {"encoder": "sleeper"}


class DinoSleeper(Prepares, Sleeper):
    preparing = Preprocessing(
        *(SIDE, SIDE, Image.Resampling.BILINEAR, 1 / 255, [0.5] * 3, [0.25] * 3), rounded=False
    )


class VaeSleeper(Prepares, Sleeper):
    preparing = Pixels()

    def part(self, batch: NDArray[Any]) -> float:
        return float(batch[0, ..., 0].size / 1024**2)


class TextSleeper(Sleeper):
    words: Any = load(T5, Options(), {})

    def prepare(self, caption: str) -> Tokens:
        tokens: Tokens = self.words.prepare(caption)
        return tokens


Encoders = dict[str, Any]


def ours(
    encoders: Encoders,
    images: Path,
    out: Path,
    fit: str,
    **options: Any,  # noqa: ANN401
) -> None:
    summary = shardwright.derive(
        images, derived_dir=out, encoders=encoders, fit=fit, batch_size=BATCH, **options
    )
    assert summary.failed == 0
    for encoder in encoders.values():
        del encoder.batches[0]  # the trial at the start


def alone(encoders: Encoders, images: Path, out: Path, fit: str) -> None:
    """Only encode, in full batches, from inputs that are ready: nothing can beat that."""
    count = len(list(images.glob("*.jpg")))
    inputs: dict[str, NDArray[Any]] = {
        "dinov3": np.zeros((BATCH, SIDE, SIDE, 3), np.float32),
        "vae": np.zeros((BATCH, 1024, 1024, 3), np.uint8),
        "t5": np.zeros((BATCH, 77), np.int64),
    }
    for first in range(0, count, BATCH):
        for name, batch in inputs.items():
            encoders[name].encode(batch[: count - first])


def loop(encoders: Encoders, images: Path, out: Path, fit: str) -> None:
    """Do what one would write first: one image after the other, nothing synced."""
    for component in SPECIFICATION.components:
        (out / component.folder).mkdir(parents=True)
    with open(out / "records.jsonl", "w") as records:
        for path in sorted(images.glob("*.jpg")):
            with Image.open(path) as opened:
                image = ImageOps.exif_transpose(opened).convert("RGB")
            bucket = SPECIFICATION.bucket_for(*image.size)
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


WAYS: dict[str, Callable[[Encoders, Path, Path, str], None]] = {
    "shardwright": ours,
    "fast": partial(ours, decode="fast"),
    "loop": loop,
    "alone": alone,
}

if __name__ == "__main__":
    images, out, way, gpu, fit = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    encoders: Encoders = {
        "dinov3": DinoSleeper(DINO, 0.005),
        "vae": VaeSleeper(VAE, float(gpu)),
        "t5": TextSleeper(T5, 0.003),
    }  # seconds for an image, about what a current card takes; those of the VAE at 1024x1024
    began = time.perf_counter()
    WAYS[way](encoders, images, out, fit)
    seconds = time.perf_counter() - began
    busy = sum(encoder.busy for encoder in encoders.values())
    fill = statistics.mean(encoders["vae"].batches)
    figures = {"seconds": seconds, "idle": 1 - busy / seconds, "fill": fill}
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
