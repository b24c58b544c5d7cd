"""Make shards of images by one way, and print how long it took.

``simulated`` encoders sleep as long as a GPU would work. ``sketch`` encoders compute on the CPU, on
``workers`` processes of one core each. ``computing`` ones keep a core busy for a fixed time, as a
device with its own processor would be.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import shardwright
from benchmarks.peers.derive_all import BATCH, DINO, T5, VAE, DinoSleeper, TextSleeper, VaeSleeper
from benchmarks.peers.derive_all import alone as encode_alone
from shardwright.deriving.images import strict
from shardwright.deriving.recipe import choices, view_of
from shardwright.deriving.views import View, look
from shardwright.encoders.base import Options
from shardwright.encoders.sketch import load
from shardwright.recipes import SPECIFICATION

SHARD = 50  # samples: all workers end at about the same time


def build(images: Path, out: Path, options: dict[str, Any]) -> float:
    made = shardwright.build(images, output_dir=out / "shards", shard_size=SHARD, **options)
    assert made.failed == 0
    return made.encoder_waited


def derive_and_pack(images: Path, out: Path, options: dict[str, Any]) -> float:
    made = shardwright.derive(images, derived_dir=out / "store", **options)
    assert made.failed == 0
    shardwright.pack(derived_dir=out / "store", output_dir=out / "shards", shard_size=SHARD)
    return made.encoder_waited


def decode_and_encode(images: Path, out: Path, options: dict[str, Any]) -> float:
    """Only read and encode, in as many processes: nothing is written."""
    workers = int(options["device"].partition(":")[2] or 1)
    paths = sorted(map(str, images.glob("*.jpg")))
    with get_context("spawn").Pool(workers) as pool:
        pool.map(_start, range(workers))  # which takes time, as it does for everybody
        began = time.perf_counter()
        pool.map(_encode, [(paths[n::workers], options["fit"]) for n in range(workers)], 1)
        print(json.dumps({"seconds": round(time.perf_counter() - began, 4)}))
    raise SystemExit(0)


def _start(_: int) -> None:
    time.sleep(0.1)


def _encode(task: tuple[list[str], str]) -> None:
    paths, fit = task
    recipe = SPECIFICATION.override(fit=fit, models={})
    encoders: dict[str, Any] = {c.name: load(c, Options(), {}) for c in recipe.components}
    views: dict[str, View] = {}
    for component in recipe.pictures:
        view = view_of(component, recipe, choices(component, recipe, "sketch"))
        prepare = encoders[component.name].preparing
        views[component.name] = View(**{**vars(view), "prepare": prepare})
    with strict():
        for path in paths:
            found = look(path, list(views.values()))
            for name, prepared in zip(views, found.made, strict=True):
                encoders[name].encode(prepared[None]).astype("<f2")
            tokens = encoders["t5"].prepare(Path(path).with_suffix(".txt").read_text())
            encoders["t5"].encode(tokens.ids[None], tokens.mask[None]).astype("<f2")


WAYS: dict[str, Callable[[Path, Path, dict[str, Any]], float]] = {
    "build": build,
    "derive and pack": derive_and_pack,
    "decode and encode": decode_and_encode,
}


def written(out: Path) -> Iterator[int]:
    """Give the size of each file."""
    return (path.stat().st_size for path in out.rglob("*") if path.is_file())


if __name__ == "__main__":
    images, out, way, kind, device, fit = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    options: dict[str, Any] = {"device": device, "fit": fit, "encoders": "sketch"}
    encoders: dict[str, Any] = {}
    if kind == "simulated":
        encoders = {
            "dinov3": DinoSleeper(DINO, 0.005),
            "vae": VaeSleeper(VAE, 0.080),
            "t5": TextSleeper(T5, 0.003),
        }
        options |= {"encoders": encoders, "batch_size": BATCH}
    elif kind == "computing":
        options |= {"encoders": "pretrained", "recipe": Path(__file__).with_name("computing.toml")}
    began = time.perf_counter()
    if way == "encoders alone":
        encode_alone(encoders, images, out, fit)
    else:
        WAYS[way](images, out, options)
    figures = {"seconds": time.perf_counter() - began}
    if encoders:
        busy = sum(encoder.busy for encoder in encoders.values())
        figures["idle"] = 1 - busy / figures["seconds"]
    if sizes := list(written(out)):
        figures |= {"files": len(sizes), "written_mb": sum(sizes) / 1e6}
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
