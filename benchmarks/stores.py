"""Made-up data of any size, made once and kept; and how to make it warm, cold, or gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from benchmarks.contest import SHARDWRIGHT, Command
from benchmarks.mixed import sizes
from shardwright.buckets import Bucket
from shardwright.layout import JSONL_NAME
from shardwright.recipes import FORMAT_VERSION, SPECIFICATION
from shardwright.store.records import Record, line

if TYPE_CHECKING:
    from numpy.random import Generator
    from PIL import Image

PLANTED = "planted.json"  # beside shards: the ids of each group of copies

_DISTINCT = 6  # photographs; others are hard links to them, for one takes seconds to make
_NAMES_A_FILE = 50_000  # ext4 allows 65,000


def _record(number: int, bucket: Bucket) -> str:
    image_id = f"{number:032x}"
    record = {
        "image_id": image_id,
        "image_path": f"data/approved/{image_id}.jpg",
        "caption": f"a photograph of something worth training on, number {number}, in soft light",
        SPECIFICATION.masks[0].field: [1] * 20 + [0] * 57,
        "height": bucket.height,
        "width": bucket.width,
        "aspect_bucket": str(bucket),
        "format_version": FORMAT_VERSION,
    }
    return json.dumps(record) + "\n"


def _once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder unless it is there from before; one that was left half made is not."""
    place, unfinished = folder / name, folder / f"{name}.unfinished"
    if not place.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        os.sync()
        unfinished.rename(place)
    return place


def real_store(folder: Path, samples: int) -> Path:
    """Give a store whose arrays have their true sizes, each file its own: 0.65 MB a sample."""
    return _once(folder, f"store-{samples}", partial(_make_real_store, samples))


def _make_real_store(samples: int, store: Path) -> None:
    import numpy as np  # here, so that the runner itself stays small

    noise = np.random.default_rng(0).integers(0, 30000, 1 << 20, dtype=np.uint16)
    for component in SPECIFICATION.components:
        (store / component.folder).mkdir()
    with (store / JSONL_NAME).open("w") as lines:
        for number in range(samples):
            bucket = SPECIFICATION.buckets[number % 4]
            lines.write(_record(number, bucket))
            for component in SPECIFICATION.components:
                shape = component.shape_for(bucket.width, bucket.height)
                words = component.nbytes(shape) // 2
                array = noise[number % 1000 : number % 1000 + words].view(component.dtype)
                np.save(store / component.folder / f"{number:032x}.npy", array.reshape(shape))


def linked_store(folder: Path, samples: int) -> Path:
    """Give a store of very many records whose arrays are hard links to a few small files.

    A million of them take a minute to make and 700 MB, where files of their own would take an hour
    and a terabyte; listing, looking up and opening them is the same work.
    """
    return _once(folder, f"linked-{samples}", partial(_make_linked_store, samples))


def _make_linked_store(samples: int, store: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(_link, samples, store), range(len(SPECIFICATION.components))))
    with (store / JSONL_NAME).open("w") as lines:
        templates = [_record(0, bucket) for bucket in SPECIFICATION.buckets[:4]]
        for number in range(samples):  # json.dumps for each would take longer than the links
            line = templates[number % 4].replace(f"{0:032x}", f"{number:032x}")
            lines.write(line.replace("number 0", f"number {number}"))


def _link(samples: int, store: Path, row: int) -> None:
    import numpy as np

    component = SPECIFICATION.components[row]
    (store / component.folder).mkdir()
    place = os.open(store / component.folder, os.O_DIRECTORY)
    array = np.zeros(component.shape_for(64, 64), component.dtype)
    for number in range(samples):
        if number % _NAMES_A_FILE == 0:
            source = f"{number:032x}.npy"
            np.save(store / component.folder / source, array)
        else:
            os.link(source, f"{number:032x}.npy", src_dir_fd=place, dst_dir_fd=place)
    os.close(place)


def shard_set(folder: Path, samples: int) -> Path:
    """Give the shards of a real store, of 100 samples each, so that workers can share them."""
    store = real_store(folder, samples)
    return _once(folder, f"shards-{samples}", partial(_pack, store))


def _pack(store: Path, shards: Path) -> None:
    command: Command = [*SHARDWRIGHT, "pack", "--derived-dir", store, "--output-dir", shards]
    subprocess.run([*command, "--shard-size", "100"], check=True, capture_output=True)


def shapes(folder: Path, pictures: int) -> Path:
    """Give shards of the demo's shapes, with the recipe to train on."""
    return _once(folder, f"shapes-{pictures}", partial(_demonstrate, pictures)) / "demo/shards"


def _demonstrate(pictures: int, folder: Path) -> None:
    recipe = Path(__file__).parents[1] / "examples/shapes.toml"
    command: Command = [*SHARDWRIGHT, "demo", folder / "demo", "--recipe", recipe]
    subprocess.run([*command, "--pictures", str(pictures)], check=True, capture_output=True)


def planted_shards(folder: Path, vectors: int) -> Path:
    """Give shards with nothing but vectors, of which some are nearly the same: 5.6 KB each."""
    from benchmarks import planted  # here, because of numpy

    return _once(folder, f"planted-{vectors}", partial(planted.write, vectors))


def planned_rows(folder: Path, rows: int) -> Path:
    """Give the folder of a plan with so many inputs: 0.5 KB each, and no images."""
    return _once(folder, f"rows-{rows}", partial(_make_rows, rows))


def _make_rows(rows: int, folder: Path) -> None:
    from shardwright.building.inputs import Row  # here, because of numpy
    from shardwright.building.rows import INPUT, INPUTS_NAME

    templates, image_id = [], f"{0:032x}"
    path = f"data/approved/000/{image_id}.jpg"
    caption = "a photograph of something worth training on, " * 3 + "in soft light"
    for bucket in SPECIFICATION.buckets[:4]:
        size = (bucket.width, bucket.height)
        record: Record = {"image_id": image_id, "image_path": path, "caption": caption}
        record |= {"height": bucket.height, "width": bucket.width, "aspect_bucket": str(bucket)}
        row = Row(image_id, path, *size, 300_000, 1_700_000_000 * 10**9, xxh3=f"{0:016x}")
        templates.append(line({**record, INPUT: to_builtins(row)}).decode() + "\n")
    with (folder / INPUTS_NAME).open("w") as lines:
        for number in range(rows):
            # Ids as hashes are: no two neighbours begin alike.
            found = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}"
            lines.write(templates[number % 4].replace(image_id, found))


def stage1_file(folder: Path, records: int) -> Path:
    """Give a Stage 1 store: a JSONL with inline embeddings, 21 KB a record."""
    return _once(folder, f"stage1-{records}", partial(_make_stage1_file, records))


def _make_stage1_file(records: int, store: Path) -> None:
    import numpy as np

    noise = np.random.default_rng(0).normal(size=(1000, 1024)).astype(np.float32)
    inline = [json.dumps([float(value) for value in row]) for row in noise]
    with (store / JSONL_NAME).open("w") as file:
        for number in range(records):
            record = json.loads(_record(number, SPECIFICATION.buckets[number % 4]))
            for field in ("image_id", "aspect_bucket", "format_version"):
                del record[field]
            line = json.dumps(record)[:-1]
            file.write(f'{line}, "dinov3_embedding": {inline[number % 1000]}}}\n')


def images(folder: Path, count: int) -> Path:
    """Give JPEGs of about a megapixel with some detail, in three shapes, each with a caption."""
    return _once(folder, f"images-{count}", partial(_make_images, count))


def _make_images(count: int, place: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        width, height = ((1024, 1024), (832, 1216), (1216, 832))[number % 3]
        coarse = random.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(place / f"{number:05}.jpg", quality=92)
        (place / f"{number:05}.txt").write_text(f"benchmark picture number {number}")


def small_images(folder: Path, count: int, side: int) -> Path:
    """Give JPEGs of one small size, each with a caption."""
    return _once(folder, f"images-{side}-{count}", partial(_make_small_images, count, side))


def _make_small_images(count: int, side: int, place: Path) -> None:
    import numpy as np

    random = np.random.default_rng(2)
    for number in range(count):
        _photograph(side, side, random).save(place / f"img{number:06}.jpg", quality=90)
        (place / f"img{number:06}.txt").write_text(f"a small picture, number {number}")


def photographs(folder: Path, count: int, megapixels: int) -> Path:
    """Give JPEGs as cameras write them, with detail down to the pixel, each with a caption."""
    return _once(
        folder, f"photographs-{megapixels}-{count}", partial(_make_photographs, count, megapixels)
    )


def _make_photographs(count: int, megapixels: int, place: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    longer, shorter = (round((megapixels * 1e6 * shape) ** 0.5) for shape in (4 / 3, 3 / 4))
    for number in range(count):
        path = place / f"{number:05}.jpg"
        if number < _DISTINCT:
            width, height = (longer, shorter) if number % 3 else (shorter, longer)
            _photograph(width, height, random).save(path, quality=92)
        else:
            os.link(place / f"{number % _DISTINCT:05}.jpg", path)
        path.with_suffix(".txt").write_text(f"benchmark picture number {number}")


def _photograph(width: int, height: int, random: Generator) -> Image.Image:
    """Paint noise of every scale, the coarser the stronger; colours have less of the finest."""
    import numpy as np
    from PIL import Image

    def plane(finest: int, strength: float) -> Image.Image:
        values = np.full((height, width), 128, np.float32)
        for scale in (2**octave for octave in range(finest, 9)):
            coarse = random.standard_normal((height // scale + 2, width // scale + 2), np.float32)
            noise = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            values += np.asarray(noise) * (strength * scale**0.4)
        return Image.fromarray(values.clip(0, 255).astype(np.uint8))

    return Image.merge("YCbCr", [plane(0, 4), plane(3, 2), plane(3, 2)])


def mixed(folder: Path, count: int) -> Path:
    """Give smooth JPEGs of the sizes that are found on disks, each with a caption."""
    return _once(folder, f"mixed-{count}", partial(_make_mixed, count))


def _make_mixed(count: int, place: Path) -> None:
    import numpy as np
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    for number, size in enumerate(sizes(count)):
        path = place / f"{number:05}.jpg"
        Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR).save(path)
        path.with_suffix(".txt").write_text(f"benchmark picture number {number}")


def source(folder: Path, commit: str) -> Path | None:
    """Give the source of an earlier commit, if git has it, to be put on PYTHONPATH."""
    try:
        return _once(folder, f"source-{commit}", partial(_extract, commit)) / "src"
    except (OSError, subprocess.CalledProcessError):
        return None


def _extract(commit: str, place: Path) -> None:
    here = str(Path(__file__).parent)
    top = subprocess.check_output(["git", "-C", here, "rev-parse", "--show-toplevel"], text=True)
    archive: Command = ["git", "-C", top.strip(), "archive", f"--output={place}/src.tar", commit]
    subprocess.run([*archive, "src"], check=True, capture_output=True)
    shutil.unpack_archive(place / "src.tar", place, filter="data")


def remove(path: Path) -> None:
    """Remove what a contestant wrote, and wait until the disk is idle again."""
    shutil.rmtree(path, ignore_errors=True)
    os.sync()


def warm(*folders: Path) -> None:
    """Read every file, so that the system has it in memory."""
    buffer = bytearray(1 << 22)
    for path in _files(folders):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cool(*folders: Path) -> None:
    """Have the system forget the content of every file, as after a day of other work.

    Programs and libraries stay in memory: it is the data that is cold, not Python.
    """
    os.sync()  # what is not on the disk yet cannot be forgotten
    for path in _files(folders):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _files(folders: tuple[Path, ...]) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]
