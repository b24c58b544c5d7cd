"""Tars of images as img2dataset writes them, for tests."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from tests.derive.pictures import gradient

Member = tuple[str, bytes] | tarfile.TarInfo
LAYOUTS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def picture(width: int = 24, height: int = 16, seed: int = 0, kind: str = "PNG") -> bytes:
    """Make the bytes of an image file."""
    return encoded(Image.fromarray(gradient(width, height, seed)), kind)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:  # noqa: ANN401 - for Pillow
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write_tar(path: Path, members: Iterable[Member], layout: int = tarfile.PAX_FORMAT) -> Path:
    """Write members in this order; a header alone is a link, a folder or a device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=layout) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, data = member
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    """Make a member that is not a file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "elsewhere"
    return info


def members_of(key: str, seed: int = 0, size: tuple[int, int] = (24, 16)) -> list[Member]:
    """Make a sample as img2dataset writes it, with what it writes into the JSON."""
    fields: dict[str, object] = {
        "caption": f"in the json of {key}",
        "url": f"https://x.org/{key}.jpg",
        "key": key,
    }
    fields |= {"status": "success", "width": 1, "height": 2, "sha256": "ab" * 32}
    return [
        (f"{key}.jpg", picture(*size, seed, "JPEG")),
        (f"{key}.json", json.dumps(fields).encode()),
        (f"{key}.txt", f"the text of {key}".encode()),
    ]


def write_set(path: Path, keys: Iterable[str]) -> Path:
    """Write a tar of such samples; each image has a size of its own."""
    samples = (members_of(key, n, (24 + n, 16)) for n, key in enumerate(keys))
    return write_tar(path, [member for sample in samples for member in sample])
