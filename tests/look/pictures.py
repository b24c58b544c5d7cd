"""A small data set with everything that a viewer shows: crops, cuts, copies, failures, a split."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.request import urlopen

import msgspec
import numpy as np
from PIL import Image

from shardwright import derive, pack
from shardwright.deriving.images import strict
from shardwright.looking import open_source
from shardwright.looking.pictures import Previews
from shardwright.looking.server import open_server
from shardwright.looking.viewer import Viewer
from shardwright.progress import Progress
from tests.derive.pictures import save

RECIPE = """\
extends = "prx"
[images]
fit = "bucket"
buckets = ["64x64", "96x64", "64x96"]
"""
HOSTILE = '<img src=x onerror="document.title=1">'
WORDS = ("red", "blue", "round", "tall", "soft", "loud", "near", "far")
LONG = " ".join(f"word{number}" for number in range(100))


@dataclass(frozen=True)
class Folders:
    """Where everything is."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def split(self) -> Path:
        return self.root / "split"


def painted(width: int, height: int, seed: int) -> np.ndarray[Any, Any]:
    """Paint blocks of random colours, so that no two pictures are alike."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def make(root: Path) -> Folders:
    """Paint, derive with the sketches, and pack."""
    at = Folders(root)
    sizes = ((64, 64), (96, 64), (64, 96))
    words = random.Random(0)
    for number in range(18):
        save(at.images / f"img{number:03}.png", painted(*sizes[number % 3], seed=number))
        caption = f"a {words.choice(WORDS)} thing, number {number}"
        (at.images / f"img{number:03}.txt").write_text(caption)
    save(at.images / "wide.png", painted(256, 64, seed=100))
    (at.images / "wide.txt").write_text("a wide thing")
    save(at.images / "small.png", painted(32, 32, seed=101))
    (at.images / "small.txt").write_text("a small thing")
    save(at.images / "long.png", painted(64, 64, seed=102))
    (at.images / "long.txt").write_text(LONG)
    save(at.images / "copy.png", painted(64, 64, seed=0) // 8 * 8 + 4)
    (at.images / "copy.txt").write_text("a copy of the first")
    save(at.images / "evil.png", painted(96, 64, seed=103))
    (at.images / "evil.txt").write_text(HOSTILE)
    (at.images / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    (at.images / "broken.txt").write_text("a broken thing")
    (root / "small.toml").write_text(RECIPE)
    derive(at.images, recipe=root / "small.toml", derived_dir=at.store, encoders="sketch")
    pack(derived_dir=at.store, output_dir=at.shards, shard_size=5, workers=1)
    pack(derived_dir=at.store, output_dir=at.split, split="val=30%", workers=1)
    return at


def previews(path: Path | str, images: Path | None = None) -> Previews:
    """Open a path as ``look`` does."""
    return Previews(open_source("path", path, None, Progress()), images, decode=False)


class Served:
    """A viewer behind its server."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._stack.enter_context(strict())
        self.server = self._stack.enter_context(open_server(self.viewer, 0))
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        self._stack.callback(self.server.shutdown)
        self.url = self.server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Ask for something that answers with JSON."""
        with urlopen(f"{self.url}{path}", timeout=300) as answer:
            return msgspec.json.decode(answer.read())

    def picture(self, path: str) -> Image.Image:
        """Ask for a picture."""
        with urlopen(f"{self.url}{path}", timeout=300) as answer:
            return Image.open(answer).convert("RGB")
