"""The inputs of all cases, made from seeds: the same bytes and times on every machine."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import zlib
from pathlib import Path

BORN = 1_700_000_000  # when the inputs were made; what a case changes is made later

# Of the specification's buckets, tiny; two are nearly the same picture, one has a long caption.
PICTURES = {
    "apple": (32, 32, 1),
    "bread": (32, 32, 2),
    "cloud": (26, 38, 3),
    "door": (26, 38, 4),
    "eagle": (38, 26, 5),
    "field": (24, 40, 6),
    "grape": (32, 32, 1),
    "more/house": (26, 38, 8),
}
LONG = "an eagle above " + ", ".join(f"hill {n}" for n in range(40))
TARRED = {"000001": (32, 32, 11), "000002": (38, 26, 12), "000003": (26, 38, 13)}

# The layout of FLUX.1: other components in another order, two from the caption, and --fit bucket.
FLUX = """\
extends = "flux"

[paths]
images = "data/approved"
store = "data/derived"
shards = "data/shards"

[images]
buckets = ["64x64", "48x72", "72x48", "48x80"]

[component.t5]
tokens = 24
shape = ["tokens", 32]

[component.clip_l_pooled]
tokens = 12
shape = [16]
"""

# The default recipe and one text more, for components that are made again.
LONGER = {
    "prx": 'extends = "prx"\n\n[component.t5]\ntokens = 96\n',
    "flux": FLUX.replace("tokens = 24", "tokens = 32"),
}


def make(folder: Path, layout: str) -> None:
    """Make all inputs in a folder, for one layout of samples."""
    images = folder / "data/approved"
    for name, (width, height, seed) in PICTURES.items():
        write(images / f"{name}.png", picture(width, height, seed, dot=name == "grape"))
        caption = LONG if name == "eagle" else f"a picture of {Path(name).name}, number {seed}"
        write(images / f"{name}.txt", caption.encode() + b"\n")
    write(images / "broken.png", picture(32, 32, 9)[:200])
    write(images / "broken.txt", b"half a picture\n")
    write(images / "silent.png", picture(32, 32, 10))
    write(folder / "captions.jsonl", captions())
    write(folder / "tars/00000.tar", image_tar())
    write(folder / "longer.toml", LONGER[layout].encode())
    write(folder / "good.txt", b"apple\ncloud\ndoor\nnowhere\n")
    if layout == "flux":
        write(folder / "shardwright.toml", FLUX.encode())
    else:
        write(folder / "stage1/approved_image_dataset.jsonl", stage1())


def write(path: Path, data: bytes, minutes: int = 0) -> None:
    """Write a file with a time that is no time of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (BORN + 60 * minutes,) * 2)


def picture(width: int, height: int, seed: int, *, dot: bool = False) -> bytes:
    """Make a PNG with a soft pattern; uncompressed, as zlib's versions give other bytes."""
    draw = random.Random(seed)
    waves = [(draw.uniform(1, 9), draw.uniform(1, 9), draw.randrange(256)) for _ in range(3)]
    rows = bytearray()
    for y in range(height):
        rows.append(0)  # the row as it is
        for x in range(width):
            rows += bytes(int(a * x + b * y + c) % 256 // 2 + c // 2 for a, b, c in waves)
    if dot:
        rows[1:4] = b"\xff\xff\xff"
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    size = len(rows).to_bytes(2, "little")
    stored = b"\x78\x01\x01" + size + bytes(255 - byte for byte in size) + rows
    stored += zlib.adler32(rows).to_bytes(4, "big")
    chunks = ((b"IHDR", head), (b"IDAT", stored), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + checksum


def captions() -> bytes:
    """Make a captions file with a column of its own, and a row for no image."""
    rows = [
        {"file_name": f"{name}.png", "caption": f"{name} as the file says", "scene": seed % 2}
        for name, (_, _, seed) in PICTURES.items()
    ]
    rows += [{"file_name": "silent.png", "caption": "not silent any more", "scene": 0}]
    rows += [{"file_name": "nowhere.png", "caption": "of no image", "scene": 1}]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def image_tar() -> bytes:
    """Make a tar of images as img2dataset writes them; one of them is broken."""
    members = []
    for key, (width, height, seed) in TARRED.items():
        fields = {"key": key, "caption": f"in the json of {key}", "url": f"https://x.org/{key}"}
        members.append((f"{key}.png", picture(width, height, seed)))
        members.append((f"{key}.json", json.dumps(fields).encode()))
        if key != "000003":
            members.append((f"{key}.txt", f"the text of {key}".encode()))
    members += [("000004.png", b"no picture"), ("000004.txt", b"of no picture")]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def stage1() -> bytes:
    """Make records with inline arrays: one complete, one with a vector only, and a bad line."""
    draw = random.Random(0)
    lines = [b"no record"]
    for name in ("apple", "cloud"):
        width, height, _ = PICTURES[name]
        record: dict[str, object] = {
            "image_path": f"data/approved/{name}.png",
            "caption": f"{name} of stage 1",
            "dinov3_embedding": _numbers(draw, 1024),
            "t5_attention_mask": [1] * 5 + [0] * 72,
            "score": 0.5,
        }
        if name == "apple":
            rows, columns = height // 8, width // 8
            latent = [[_numbers(draw, columns) for _ in range(rows)] for _ in range(16)]
            record |= {"vae_latent": latent, "t5_hidden": [_numbers(draw, 1024)] * 77}
            record |= {"height": height, "width": width}
        lines.append(json.dumps(record).encode())
    return b"".join(line + b"\n" for line in lines)


def _numbers(draw: random.Random, count: int) -> list[float]:
    """Draw numbers that every float type holds exactly."""
    return [draw.randrange(-512, 512) / 256 for _ in range(count)]
