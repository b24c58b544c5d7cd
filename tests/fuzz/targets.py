"""What may become of any bytes: an answer, or an error of ours. Anything else is a bug.

A target takes the bytes of one file. What it lets pass must be read alike by the library that
trainers will use, lie within the bytes there are, and survive being read by everything after it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from PIL import Image

import shardwright
from shardwright import Progress, ShardwrightError, VerifyReport
from shardwright.building import built, outcome, rows
from shardwright.building.state import load_plan
from shardwright.deriving.outcomes import read_failures
from shardwright.errors import DamageError
from shardwright.recipes import SPECIFICATION, Component, Side
from shardwright.recipes.values import PICTURES
from shardwright.shards.format import index, manifest, tarread
from shardwright.shards.format import records as shard_records
from shardwright.shards.format.tarread import BadTarError, Entry
from shardwright.shards.loaders.indexes import read_record
from shardwright.storage.paths import is_gone
from shardwright.store import arrays, content, facts, paths, provenance, records
from shardwright.store.faults import RECORD_FAULTS, Rules
from shardwright.store.npy import BadArrayError
from shardwright.store.records import BadRecordError
from shardwright.store.stage1 import repeated_ids, to_stage2
from shardwright.store.store import Store, read_recipe
from tests import stage1, stores

SHARD = "bucket_24x16/shard-000000.tar"
SMALL = Component("small", "small", "small.npy", "<f2", (3, Side("width", 8)))


def record_lines(data: bytes) -> None:
    """A JSONL of either stage."""
    read = list(records.lines(io.BytesIO(data)))
    repeated = repeated_ids(read)
    for line in read:
        try:
            record = records.parse(line.data)
        except BadRecordError as error:
            require_name(error.reason)
        else:
            assert records.parse(records.line(record)) == record
            for fault in Rules(SPECIFICATION).faults(record):
                assert fault in RECORD_FAULTS
        try:
            become = to_stage2(line, repeated, SPECIFICATION)
        except BadRecordError as error:
            require_name(error.reason)
        else:
            assert become is None or records.parse(become.line)["image_id"] == become.image_id


def require_name(problem: str | None) -> None:
    """A problem has a name that can be counted by."""
    assert problem is None or problem.isidentifier()


def array_file(
    data: bytes, components: tuple[Component, ...] = (SMALL, *SPECIFICATION.components)
) -> None:
    """An array file, whose header may claim anything."""
    fd = on_disk(data)
    for component in components:
        try:
            size, shape = content.check(fd, component)
        except BadArrayError as error:
            require_name(error.reason)
            continue
        # What we let pass, NumPy must read as we did: it is what trainers will use.
        array = np.load(io.BytesIO(data), allow_pickle=False)
        assert (array.dtype.str, array.shape, size) == (component.dtype, shape, len(data))
        try:
            arrays.check_values(fd, size, shape, component)
        except BadArrayError as error:
            require_name(error.reason)


def picture_file(data: bytes) -> None:
    """A picture, whose head may claim anything."""
    fd = on_disk(data)
    for extension in PICTURES:
        sides = (Side("height", 1), Side("width", 1), 3)
        component = Component("p", "p", f"p.{extension}", "|u1", sides, encoder="picture")
        try:
            size, shape = content.check(fd, component)
            arrays.check_values(fd, size, shape, component)
        except BadArrayError as error:
            require_name(error.reason)
            continue
        # What we let pass, Pillow must read as we did.
        with Image.open(io.BytesIO(data)) as image:
            assert (np.asarray(image).shape, size) == (shape, len(data))


def tar(data: bytes) -> None:
    """A tar of another tool: its members, its check, and reading from it."""
    tar_members(data)
    folder = scratch() / "foreign"
    (folder / SHARD).parent.mkdir(parents=True, exist_ok=True)
    (folder / SHARD).write_bytes(data)
    assert looked_at(folder) is not None
    opened(folder)


class InMemory:
    """Bytes that are read as a file is."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def pread(self, offset: int, size: int) -> bytes:
        """Give some of them."""
        return self.data[offset : offset + size]


def tar_members(data: bytes) -> list[Entry]:
    """Read the headers of a tar; none if they are damaged."""
    try:
        found = list(tarread.entries(InMemory(data)))
    except BadTarError:
        return []
    for entry in found:
        assert 512 <= entry.offset <= len(data)
        assert 0 <= entry.size <= len(data) - entry.offset
    return found


def manifest_file(data: bytes) -> None:
    """A manifest: as it is, and with the right checksum, so that what it says is looked at."""
    path = packed() / ".shardwright" / manifest.MANIFEST_NAME
    for document in (data, signed_manifest(data)):
        try:
            manifest.decode_manifest(document, path)
        except DamageError:
            continue
        complete = path.read_bytes()
        path.write_bytes(document)
        looked_at(packed())
        opened(packed())
        path.write_bytes(complete)


def index_file(data: bytes) -> None:
    """An index: as it is, and with the right checksum, beside the shard and the manifest."""
    path = packed() / index.index_name(SHARD)
    for document in (data, signed_index(data)):
        try:
            index.decode(document, path)
        except DamageError:
            continue
        complete = path.read_bytes()
        path.write_bytes(document)
        report = looked_at(packed())
        assert document == complete or (report is not None and report.damaged)
        opened(packed())
        path.write_bytes(complete)


def records_file(data: bytes) -> None:
    """The records of a shard, with the checksum that they have."""
    try:
        found = list(shard_records.decode(data, SHARD, xxhash.xxh3_64_hexdigest(data)))
    except DamageError:
        return
    for record, known in found:
        assert shard_records.FACTS not in record
        assert all(isinstance(count, int) for count in known.tokens.values())


def state_file(data: bytes) -> None:
    """A file of a state folder, whichever it is: whoever reads it takes it or refuses it."""
    store = Store(scratch() / "any", scratch() / "any/approved_image_dataset.jsonl")
    state = store.state
    readers: dict[str, Callable[[], object]] = {
        "recipe.json": lambda: read_recipe(store.folder),
        "provenance.json": lambda: provenance.read(store.folder),
        "paths.json": lambda: paths.captions_of(store.folder, store),
        "facts.jsonl": lambda: facts.survey(store, {"one", "two"}, Progress()),
        "failures.jsonl": lambda: [is_gone(each.image_path) for each in read_failures(store)],
        "loaders.json": lambda: read_record(store.folder),
        "ledger.jsonl": lambda: outcome.load_ledger(store.folder),
        "unfinished.json": lambda: manifest.load_unfinished(store.folder),
        "build/plan.json": lambda: load_plan(store.folder),
        "build/inputs.jsonl": lambda: list(rows.heads(state / "build", Progress())),
        "built/one.jsonl": lambda: list(built.load(store.folder, ["one"])),
    }
    (state / "build").mkdir(parents=True, exist_ok=True)
    (state / "built").mkdir(exist_ok=True)
    for name, read in readers.items():
        signed = name == "unfinished.json"
        for document in (data, signed_manifest(data)) if signed else (data,):
            (state / name).write_bytes(document)
            with suppress(ShardwrightError):
                read()
            (state / name).unlink()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "record_lines": record_lines,
    "array_file": array_file,
    "picture_file": picture_file,
    "tar": tar,
    "manifest_file": manifest_file,
    "index_file": index_file,
    "records_file": records_file,
    "state_file": state_file,
}


def corpus(name: str) -> list[bytes]:
    """Give real files to begin with."""
    match name:
        case "record_lines":
            stage2 = [stores.line(stores.record(f"img{n}")) for n in range(2)]
            inline = json.dumps(stage1.record("one", vae_latent=[[[0.5]]] * 16)).encode()
            return [b"\n".join(stage2), b"\xef\xbb\xbf" + stage2[0] + b"\r\n", inline, b"{}\n\n[]"]
        case "array_file":
            small = np.arange(12, dtype="<f2").reshape(3, 4)
            mask = stores.npy(np.ones(77, np.uint8))
            embedding = stores.npy(stores.array("dinov3", "one"))
            return [stores.npy(small), stores.npy(small.astype(">f2")), mask, embedding]
        case "picture_file":
            image = Image.linear_gradient("L").resize((24, 16)).convert("RGB")
            pictures = []
            for kind, lossless in (("jpeg", 0), ("png", 0), ("webp", 0), ("webp", 1)):
                image.save(file := io.BytesIO(), kind, lossless=bool(lossless))
                pictures.append(file.getvalue())
            return pictures
        case "tar":
            members = [
                ("one.json", stores.line(stores.record("one", "24x16"))),
                ("one.t5m.npy", stores.npy(np.ones(77, np.uint8))),
                ("folder/" * 20 + "key.json", b"{}"),
            ]
            layouts = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
            return [made_tar(*members, layout=layout)[:8192] for layout in layouts]
        case "manifest_file":
            complete = (packed() / ".shardwright" / manifest.MANIFEST_NAME).read_bytes()
            return [complete, complete.rpartition(b',\n  "xxh3": "')[0]]
        case "records_file":
            return [(packed() / shard_records.records_name(SHARD)).read_bytes()]
        case "state_file":
            from tests.fuzz import worlds  # here, because it signs as we do

            with tempfile.TemporaryDirectory() as folder:
                worlds.make(world := Path(folder, "world"))
                states = (*world.glob("store/.shardwright"), *world.glob("built/.shardwright"))
                found = [path for state in states for path in state.rglob("*.json*")]
                found += world.glob("*/.shardwright/*/*.jsonl")
                found += world.glob("shards/.shardwright/loaders.json")
                return [path.read_bytes() for path in sorted({*found})]
        case _:
            complete = (packed() / index.index_name(SHARD)).read_bytes()
            return [complete, complete[:-8]]


def made_tar(
    *members: tarfile.TarInfo | tuple[str, bytes], layout: int = tarfile.USTAR_FORMAT
) -> bytes:
    """Make a tar with Python's own writer."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=layout) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def signed_manifest(body: bytes) -> bytes:
    """Give any bytes the checksum with which a document of ours ends."""
    return body + b',\n  "xxh3": "' + xxhash.xxh3_64_hexdigest(body).encode() + b'"\n}\n'


def signed_index(body: bytes) -> bytes:
    """Give any bytes the checksum that an index must have."""
    return body + xxhash.xxh3_64_digest(body)[::-1]


def looked_at(folder: Path) -> VerifyReport | None:
    """Verify a shard folder; None if it cannot be, for a reason of ours."""
    try:
        report = shardwright.verify(folder, read_data=True, workers=1)
    except ShardwrightError:
        return None
    json.dumps(report.to_dict())
    return report


def opened(folder: Path) -> None:
    """Open a shard folder and read from it; an error of ours is fine."""
    try:
        for sample in shardwright.open(folder):
            assert sample["__key__"]
    except ShardwrightError:
        return


def on_disk(data: bytes) -> int:
    """Write bytes to a file that is used again and again; give it open."""
    fd = _file().fileno()
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    return fd


@cache
def _file() -> BinaryIO:
    return open(scratch() / "file", "w+b")


@cache
def scratch() -> Path:
    """Make a folder that goes with the process."""
    made = Path(tempfile.mkdtemp(prefix="shardwright-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def packed() -> Path:
    """Pack a shard of two samples."""
    samples = [stores.record("one", "24x16"), stores.record("two", "24x16")]
    store = stores.make_store(scratch() / "derived", samples)
    shardwright.pack(derived_dir=store.root, output_dir=scratch() / "shards", workers=1)
    return scratch() / "shards"
