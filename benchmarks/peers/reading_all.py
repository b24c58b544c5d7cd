"""Read pictures by one way: decode, fit to the bucket, and make the input of DINOv3.

Prints the seconds, those of the processor in all processes, and by how much the fitted pictures
differ on average from those of the way before, of 255. Starting does not count: every worker has
read a picture before.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ["VIPS_CONCURRENCY"] = "1"  # workers are what is compared, not a library's own threads

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardwright.deriving import images
from shardwright.deriving.decoders import Decoders
from shardwright.deriving.views import View, look
from shardwright.encoders.base import Pixels, Preprocessing
from shardwright.recipes import SPECIFICATION
from shardwright.store.provenance import FAST

SIDE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
COMPARED = 3  # pictures
Array = NDArray[Any]


class Read(NamedTuple):
    """The picture at its bucket's size, and the input of DINOv3."""

    fitted: Array
    seen: Array


def views(decode: str | None) -> list[View]:
    """Give what the VAE and DINOv3 see with --fit bucket."""
    dino = Preprocessing(SIDE, SIDE, Image.Resampling.BILINEAR, 1 / 255, MEAN, STD, rounded=False)
    return [
        View(
            fit="bucket",
            decode=decode,
            buckets=SPECIFICATION.buckets,
            prepare=prepare,
        )
        for prepare in (Pixels(), dino)
    ]


def before(path: str) -> Read:
    """Do what derive did up to commit 716e6b7: copy, slice, copy, and resize all float pixels."""
    xxhash.xxh3_64_hexdigest(Path(path).read_bytes())  # the facts of the file
    with Image.open(path) as image:
        image.load()
        picture = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    size, box = frame(picture.shape[1], picture.shape[0])
    left, top, right, bottom = map(round, box)
    part = Image.fromarray(np.ascontiguousarray(picture[top:bottom, left:right]))
    return Read(np.array(part.resize(size, Image.Resampling.LANCZOS)), dino(picture))


def dino(picture: Array) -> Array:
    """Resize without rounding to 8 bits, as the processor of transformers."""
    planes = (Image.fromarray(picture[..., n].astype(np.float32)) for n in range(3))
    size, bilinear = (SIDE, SIDE), Image.Resampling.BILINEAR
    return normal(np.stack([np.asarray(plane.resize(size, bilinear)) for plane in planes]))


def normal(pixels: Array) -> Array:
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (MEAN, STD))
    values: Array = (pixels * np.float32(1 / 255) - mean) / std
    return values


def frame(width: int, height: int) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Give the size of the bucket, and the part of the picture that it shows."""
    bucket = SPECIFICATION.bucket_for(width, height)
    scale = min(width / bucket.width, height / bucket.height)
    left, top = (width - bucket.width * scale) / 2, (height - bucket.height * scale) / 2
    return (bucket.width, bucket.height), (left, top, width - left, height - top)


def shrinking(path: str) -> tuple[tuple[int, int], int]:
    """Give the size of the bucket, and by how much a decoder may shrink the picture before."""
    with Image.open(path) as image:
        size, (left, top, right, bottom) = frame(*image.size)
    least = min((right - left) / size[0], (bottom - top) / size[1])
    return size, max(scale for scale in (1, 2, 4, 8) if scale <= max(1, least))


def fit(image: Image.Image) -> Read:
    size, box = frame(*image.size)
    fitted = np.asarray(image.resize(size, Image.Resampling.LANCZOS, box))
    return Read(fitted, dino(fitted))


def draft(path: str) -> Read:
    _, scale = shrinking(path)
    with Image.open(path) as image:
        image.draft("RGB", (image.width // scale, image.height // scale))
        return fit(image)


def simplejpeg(path: str) -> Read:
    import simplejpeg

    (width, height), _ = shrinking(path)
    data = Path(path).read_bytes()
    picture = simplejpeg.decode_jpeg(data, "RGB", min_width=width, min_height=height)
    return fit(Image.fromarray(picture))


def pyvips(path: str) -> Read:
    import pyvips

    (width, height), _ = shrinking(path)
    fitted = pyvips.Image.thumbnail(path, width, height=height, crop="centre").numpy()
    return Read(fitted, dino(fitted))


def opencv(path: str) -> Read:
    import cv2

    cv2.setNumThreads(1)
    size, scale = shrinking(path)
    picture: Any = cv2.imread(path, getattr(cv2, f"IMREAD_REDUCED_COLOR_{scale}", cv2.IMREAD_COLOR))
    _, box = frame(picture.shape[1], picture.shape[0])
    left, top, right, bottom = map(round, box)
    fitted = cv2.resize(picture[top:bottom, left:right], size, interpolation=cv2.INTER_AREA)
    fitted = cv2.cvtColor(fitted, cv2.COLOR_BGR2RGB)
    small = cv2.resize(fitted, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return Read(fitted, normal(small.transpose(2, 0, 1)))


PEERS: dict[str, Callable[[str], Read]] = {
    "before": before,
    "draft": draft,
    "simplejpeg": simplejpeg,
    "pyvips": pyvips,
    "opencv": opencv,
}


@contextmanager
def reader(way: str, workers: int) -> Iterator[tuple[Callable[[str], Read], int]]:
    """Give what reads one picture, and how many threads are to call it."""
    if way in PEERS:
        yield PEERS[way], workers
        return
    through = views(FAST if way == "fast" else None)
    children = workers if workers > 1 else 0
    with images.strict(), Decoders(look, children) as decoders:
        threads = decoders.threads if children else 1
        yield lambda path: Read(*decoders(path, through).made), threads


def processor() -> float:
    """Give the seconds of the processor that this process and its children have used."""
    seconds = time.process_time()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


if __name__ == "__main__":
    folder, way, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    paths = sorted(map(str, folder.glob("*.jpg")))
    with reader(way, workers) as (read, threads), ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, paths[:1] * threads))  # every worker has started
        began, used = time.perf_counter(), processor()
        for _ in pool.map(read, paths):
            pass
        seconds, used = time.perf_counter() - began, processor() - used
        found = list(map(read, paths[:COMPARED]))
    exact = [look(path, views(None)).made[0] for path in paths[:COMPARED]]
    off = [np.abs(a.fitted - np.float32(b)).mean() for a, b in zip(found, exact, strict=True)]
    figures = {"seconds": seconds, "cpu": used, "difference": float(np.mean(off))}
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
