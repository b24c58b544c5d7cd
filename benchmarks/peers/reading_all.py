"""Read pictures by one way: decode, fit to the bucket, and make the input of DINOv3.

Prints the seconds, those of the processor in all processes, and by how much the fitted pictures
differ on average from those of the way before, of 255. Starting does not count: every worker has
read a picture before.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["VIPS_CONCURRENCY"] = "1"  # workers are what is compared, not a library's own threads

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardwright.recipes import SPECIFICATION

SIDE = 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
Array = NDArray[Any]
Box = tuple[int, int, int, int]


class Read(NamedTuple):
    """The picture at its bucket's size, and the input of DINOv3."""

    fitted: Array
    seen: Array


def before(path: str) -> Read:
    """Do what derive did up to commit 716e6b7: copy, slice, copy, and resize all float pixels."""
    xxhash.xxh3_64_hexdigest(Path(path).read_bytes())  # the facts of the file
    with Image.open(path) as image:
        image.load()
        picture = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    size, (left, top, right, bottom) = frame(picture.shape[1], picture.shape[0])
    part = Image.fromarray(np.ascontiguousarray(picture[top:bottom, left:right]))
    return Read(np.array(part.resize(size, Image.Resampling.LANCZOS)), dino(picture))


def dino(picture: Array) -> Array:
    """Resize without rounding to 8 bits, as the processor of transformers."""
    planes = (Image.fromarray(picture[..., n].astype(np.float32)) for n in range(3))
    size, bilinear = (SIDE, SIDE), Image.Resampling.BILINEAR
    pixels = np.stack([np.asarray(plane.resize(size, bilinear)) for plane in planes])
    values: Array = (pixels * np.float32(1 / 255) - MEAN) / STD
    return values


def frame(width: int, height: int) -> tuple[tuple[int, int], Box]:
    """Give the size of the bucket, and the part of the picture that it shows."""
    bucket = SPECIFICATION.bucket_for(width, height)
    scale = min(width / bucket.width, height / bucket.height)
    wide, high = round(bucket.width * scale), round(bucket.height * scale)
    left, top = (width - wide) // 2, (height - high) // 2
    return (bucket.width, bucket.height), (left, top, left + wide, top + high)


def draft(path: str) -> Read:
    with Image.open(path) as image:
        size, (left, top, right, bottom) = frame(*image.size)
        shrink = min((right - left) / size[0], (bottom - top) / size[1])
        image.draft("RGB", (int(image.width / shrink), int(image.height / shrink)))
        image.load()
        return fit(image)


def fit(image: Image.Image) -> Read:
    size, box = frame(*image.size)
    fitted = np.asarray(image.resize(size, Image.Resampling.LANCZOS, box))
    return Read(fitted, dino(fitted))


def simplejpeg(path: str) -> Read:
    import simplejpeg

    data = Path(path).read_bytes()
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    size, _ = frame(width, height)
    needed = {"min_width": size[0], "min_height": size[1]}
    return fit(Image.fromarray(simplejpeg.decode_jpeg(data, "RGB", **needed)))


def pyvips(path: str) -> Read:
    import pyvips

    with Image.open(path) as image:
        (width, height), _ = frame(*image.size)
    found = pyvips.Image.thumbnail(path, width, height=height, crop="centre")
    fitted = found.numpy()
    return Read(fitted, dino(fitted))


def opencv(path: str) -> Read:
    import cv2

    cv2.setNumThreads(1)
    with Image.open(path) as image:
        size, (left, top, right, bottom) = frame(*image.size)
    shrink = min((right - left) / size[0], (bottom - top) / size[1])
    flags = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    reduced = max((n for n in flags if n <= shrink), default=1)
    picture = cv2.imread(path, flags.get(reduced, cv2.IMREAD_COLOR))
    _, (left, top, right, bottom) = frame(picture.shape[1], picture.shape[0])
    fitted = cv2.resize(picture[top:bottom, left:right], size, interpolation=cv2.INTER_AREA)
    fitted = cv2.cvtColor(fitted, cv2.COLOR_BGR2RGB)
    small = cv2.resize(fitted.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return Read(fitted, (small.transpose(2, 0, 1) * np.float32(1 / 255) - MEAN) / STD)
