"""Stores, shards and interrupted runs in one folder, whose files are then changed.

Beside them lie neighbours like them, which no command may touch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

import shardwright
from shardwright import ShardwrightError
from shardwright.building.plan import PlanFile
from shardwright.shards.format import manifest
from shardwright.storage.files import using
from tests.building.builds import write_recipe
from tests.derive.pictures import make_images
from tests.faults import Call, Killed, WatchedDisk
from tests.fuzz.targets import signed_index, signed_manifest

BUCKET = "64x64"
SHARD = f"bucket_{BUCKET}/shard-000000.tar"
STATE = ".shardwright"
LOADERS = ("energon", "dali", "wids", "webshart", "hf")

Document = Any
Put = Callable[[Document, str], None]
Run = Callable[[Path], object]
MANIFEST, UNFINISHED = f"{STATE}/manifest.json", f"{STATE}/unfinished.json"


class KillingAt(WatchedDisk):
    """Kills the process at the first call that is meant, and stays dead."""

    def __init__(self, meant: Callable[[Call], bool]) -> None:
        super().__init__()
        self.meant, self.dead = meant, False

    def before(self, call: Call) -> None:
        self.dead = self.dead or self.meant(call)
        if self.dead:
            raise Killed(str(call))


def make(world: Path) -> None:
    """Make a store, shards, and interrupted runs of each kind; and neighbours like them."""
    write_recipe(world)
    make_images(world / "images", 2, ((64, 64),))
    (world / "captions.csv").write_text("file_name,caption\nimg000.png,of a row\n")
    derive(world, captions=world / "captions.csv")
    pack(world)
    index_for(world, *LOADERS)
    shutil.copytree(world / "shards", world / "victim")
    shutil.copytree(world / "store", world / "neighbour")
    for folder in ("victim", "neighbour"):
        (world / folder / f"{STATE}/lock").unlink()
    with pytest.raises(Killed), using(KillingAt(lambda call: call.path.endswith("/final.tmp"))):
        build(world)
    build(world, "made")
    swap = KillingAt(lambda call: call.path.endswith("/steps.jsonl.tmp"))
    shutil.copytree(world / "store", world / "swap")
    with pytest.raises(Killed), using(swap):
        derive(world, "swap", recompute=["vae"])
    for folder in ("unfinished", "synced"):
        shutil.copytree(world / "shards", world / folder)
        unfinished(world / folder, sync=folder == "synced")
    shutil.copytree(world, world.with_name("pristine"), symlinks=True)


def unfinished(folder: Path, *, sync: bool) -> None:
    """Write the note of a run that has not finished in place of its manifest."""
    done = manifest.load_manifest(folder)
    assert done is not None
    run = done.runs[0]
    note = manifest.Unfinished(
        append=sync,
        plan=run.plan,
        settings=run.settings,
        replaces=[BUCKET],
        base=done if sync else None,
        sync=manifest.Before(done, {SHARD: ["img000"]}, {SHARD: {"img000": "record"}})
        if sync
        else msgspec.UNSET,
    )
    manifest.remove_manifest(folder)
    manifest.save_unfinished(folder, note)


def restored(world: Path, *folders: str) -> Path:
    """Give it as it was, always at the same place, which a build has on record."""
    for folder in folders:
        shutil.rmtree(world / folder, ignore_errors=True)
        if (pristine := world.with_name("pristine") / folder).exists():
            shutil.copytree(pristine, world / folder, symlinks=True)
    return world


# The commands


def derive(world: Path, folder: str = "store", **options: Any) -> object:  # noqa: ANN401
    return shardwright.derive(
        world / "images",
        derived_dir=world / folder,
        recipe=world / "small.toml",
        encoders="sketch",
        device="cpu",
        **options,
    )


def pack(world: Path, folder: str = "shards", **options: Any) -> object:  # noqa: ANN401
    output = world / folder
    return shardwright.pack(derived_dir=world / "store", output_dir=output, workers=1, **options)


def build(world: Path, folder: str = "built", **options: Any) -> object:  # noqa: ANN401
    return shardwright.build(
        world / "images",
        output_dir=world / folder,
        recipe=world / "small.toml",
        encoders="sketch",
        device="cpu",
        **options,
    )


def build_from(world: Path) -> object:
    new, old = world / "new", world / "shards"
    return shardwright.build(
        from_=old, components=["t5"], output_dir=new, encoders="sketch", device="cpu"
    )


def index_for(world: Path, *loaders: str, **options: Any) -> object:  # noqa: ANN401
    return shardwright.index(world / "shards", for_=loaders, **options)


def verify(world: Path, folder: str = "shards") -> object:
    """Verify a folder; that what leads out of it is damage is said in the report."""
    report = shardwright.verify(world / folder, workers=1)
    if report.damaged:
        raise ShardwrightError("; ".join(f"{each.file}: {each.what}" for each in report.findings))
    return report


def read(world: Path) -> object:
    return list(shardwright.open(world / "shards"))


DEEP = "a list of lists"  # which Python could not write


def edit(path: Path, put: Put, name: str) -> None:
    """Put a name into a document, which stays signed."""
    data = path.read_bytes() if path.exists() else b"[]"
    if path.suffix == ".idx":
        line, _, rest = data[:-8].partition(b"\n")
        document = json.loads(line)
        put(document, name)
        path.write_bytes(signed_index(_text(document) + b"\n" + rest))
    elif path.suffix == ".jsonl":
        documents = [json.loads(line) for line in data.splitlines()]
        put(documents, name)
        path.write_bytes(b"".join(_text(one) + b"\n" for one in documents))
    else:
        document = json.loads(data)
        signed = isinstance(document, dict) and document.pop("xxh3", None)
        put(document, name)
        text = _text(document)
        path.write_bytes(signed_manifest(text[:-1]) if signed else text)


def _text(document: Document) -> bytes:
    deep = "[" * 5000 + "]" * 5000
    return json.dumps(document).replace(f'"{DEEP}"', deep).encode()


def follow(world: Path, path: Path) -> None:
    """Let what has the checksum of a changed file name it as it is, as its author would."""
    xxh3 = xxhash.xxh3_64_hexdigest(path.read_bytes())
    state = path.parent
    if path.suffix == ".jsonl" and path.parts[-3] == "index":
        head = path.with_suffix(".idx")
        edit(head, lambda found, _: found.update(records_xxh3=xxh3), "")
        edit(_manifest_of(head), lambda done, _: done["shards"][0].update(records_xxh3=xxh3), "")
        follow(world, head)
    elif path.suffix == ".idx":
        edit(_manifest_of(path), lambda done, _: done["shards"][0].update(index_xxh3=xxh3), "")
    elif path.name == "inputs.jsonl":
        edit(state / "plan.json", lambda plan, _: plan.update(inputs=xxh3), "")
        follow(world, state / "plan.json")
    elif path.name == "plan.json":
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            digest = msgspec.json.decode(path.read_bytes(), type=PlanFile).digest
            _name_plan(state, digest)


def _manifest_of(path: Path) -> Path:
    return path.parents[2] / manifest.MANIFEST_NAME


def _name_plan(stage: Path, digest: str) -> None:
    """Let all that a build has left be of this plan."""
    for path in (*stage.glob("commits/*.json"), stage.parent / manifest.UNFINISHED_NAME):
        if path.exists():
            edit(path, lambda found, _: found.update(plan=digest), "")
    if (path := stage.parent / manifest.MANIFEST_NAME).exists():
        edit(path, lambda found, _: found["runs"][-1].update(plan=digest), "")
    for path in (stage.parent / "built").glob("*.jsonl"):
        path.rename(path.with_stem(digest))
