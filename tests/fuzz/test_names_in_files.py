"""A name in a file of ours never leads out of its folder, whoever wrote the file.

Each field that names a file gets names that lead to a neighbour: another shard folder and another
store, which are complete. Nothing outside the folder may change, and the error names the file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import xxhash

import shardwright
from shardwright import ShardwrightError
from shardwright.shards.format import index, manifest
from shardwright.storage.files import using
from tests.building.builds import write_recipe
from tests.derive.pictures import make_images
from tests.durability.soak import Tally
from tests.faults import Call, Killed, WatchedDisk
from tests.fuzz.targets import signed_index, signed_manifest

BUCKET = "64x64"
SHARD = f"bucket_{BUCKET}/shard-000000.tar"
STATE = ".shardwright"
LOADERS = ("energon", "dali", "wids", "webshart", "hf")

Document = Any
Put = Callable[[Document, str], None]
Run = Callable[[Path], object]


class KillingAt(WatchedDisk):
    """Kills the process at the first call that is meant, and stays dead."""

    def __init__(self, meant: Callable[[Call], bool]) -> None:
        super().__init__()
        self.meant, self.dead = meant, False

    def before(self, call: Call) -> None:
        self.dead = self.dead or self.meant(call)
        if self.dead:
            raise Killed(str(call))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, shards, and interrupted runs of each kind; beside them neighbours like them."""
    world = tmp_path_factory.mktemp("names") / "world"
    write_recipe(world)
    make_images(world / "images", 2, ((64, 64),))
    derive(world)
    pack(world)
    index_for(world, *LOADERS)
    shutil.copytree(world / "shards", world / "victim")
    shutil.copytree(world / "store", world / "neighbour")
    for folder in ("victim", "neighbour"):
        (world / folder / f"{STATE}/lock").unlink()
    with pytest.raises(Killed), using(KillingAt(lambda call: call.path.endswith("/final.tmp"))):
        build(world)
    swap = KillingAt(lambda c: c.name == "rename" and c.path.startswith(f"{world}/swap/vae"))
    shutil.copytree(world / "store", world / "swap")
    with pytest.raises(Killed), using(swap):
        derive(world, "swap", recompute=["vae"])
    for folder in ("unfinished", "synced"):
        shutil.copytree(world / "shards", world / folder)
        unfinished(world / folder, sync=folder == "synced")
    shutil.copytree(world, world.with_name("pristine"), symlinks=True)
    return world


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


@pytest.fixture
def world(pristine: Path) -> Iterator[Path]:
    """Give it to one test, and put back what that has changed anywhere."""
    yield pristine
    shutil.rmtree(pristine)
    shutil.copytree(pristine.with_name("pristine"), pristine, symlinks=True)


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


def build(world: Path, **options: Any) -> object:  # noqa: ANN401
    return shardwright.build(
        world / "images",
        output_dir=world / "built",
        recipe=world / "small.toml",
        encoders="sketch",
        device="cpu",
        **options,
    )


def build_from(world: Path) -> object:
    new, old = world / "new", world / "shards"
    return shardwright.build(from_=old, components=["t5"], output_dir=new, device="cpu")


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


# The files, and their fields


class Field(NamedTuple):
    """A field that names a file, and the commands that use it."""

    name: str
    file: str  # below the world
    base: str  # the folder that the name is joined to
    target: str  # the neighbour's file or folder that the name is to lead to
    put: Put
    commands: dict[str, Run]
    refused: bool = True  # else the entry does not count, and the run goes on


def shard_path(document: Document, name: str) -> None:
    document["shards"][0]["path"] = name


def shard_bucket(document: Document, name: str) -> None:
    document["shards"][0]["bucket"] = name


def of_run(key: str) -> Put:
    def put(document: Document, name: str) -> None:
        settings = document["runs"][0]["settings"] if "runs" in document else document["settings"]
        if key == "split":
            settings["split"] = {"parts": [[name, 0.5]], "by": None}
            settings["part"] = "train"
        else:
            settings[key] = [name] if key == "buckets" else name

    return put


def parts_of_run(document: Document, name: str) -> None:
    document["runs"][0]["parts"] = {name: "0" * 32}


def empty_caption(document: Document, name: str) -> None:
    document["empty"] = {name: "0" * 16}


def folder_of_component(document: Document, name: str) -> None:
    recipe = document.get("recipe", document)
    recipe["components"][0]["folder"] = name


def replaces(document: Document, name: str) -> None:
    document["replaces"] = [name]


def ids_before(document: Document, name: str) -> None:
    document["sync"]["ids"] = {name: ["img000"]}


def changes_before(document: Document, name: str) -> None:
    document["sync"]["changes"] = {name: {"img000": "record"}}


def inner(key: str, put: Put) -> Put:
    """Change a manifest within another document."""

    def changed(document: Document, name: str) -> None:
        found = document[key]
        put(found.get("manifest", found), name)

    return changed


def removed(document: Document, name: str) -> None:
    document[:] = [{"removed": [name]}]


def renamed_from(document: Document, name: str) -> None:
    document[:] = [{"renamed": {name: ["other", "other.png"]}}]


def renamed_to(document: Document, name: str) -> None:
    document[:] = [{"renamed": {"img000": [name, "other.png"]}}]


def jsonl(document: Document, name: str) -> None:
    document[:] = [{"removed": ["img000"], "jsonl": name}]


def loader_file(loader: str) -> Put:
    def put(document: Document, name: str) -> None:
        known = document[loader]
        known[name] = next(iter(known.values()))

    return put


def shard_of_commit(document: Document, name: str) -> None:
    document["shard"]["path"] = name


def field_of_lines(key: str) -> Put:
    def put(document: Document, name: str) -> None:
        document[0][key] = name

    return put


def component_of_entry(document: Document, name: str) -> None:
    entry = next(iter(document["components"].values()))
    entry["component"] = {
        "name": "vae", "folder": name, "suffix": "vae.npy", "dtype": "<f2", "shape": [4],
    }  # fmt: skip


def shard_of_index(document: Document, name: str) -> None:
    document["shard"] = name


MANIFEST, UNFINISHED = f"{STATE}/manifest.json", f"{STATE}/unfinished.json"
OUTPUT: dict[str, Run] = {
    "pack --append": lambda world: pack(world, append=True),
    "pack --resume": lambda world: pack(world, resume=True),
    "pack --sync": lambda world: pack(world, sync=True),
    "index --for webshart": lambda world: index_for(world, "webshart"),
    "index --for energon": lambda world: index_for(world, "energon"),
    "index --for dali": lambda world: index_for(world, "dali"),
    "build --from": build_from,
    "verify": verify,
    "open": read,
}
RESUME: dict[str, Run] = {
    "pack --resume": lambda world: pack(world, "unfinished", resume=True),
    "verify": lambda world: verify(world, "unfinished"),
}
SYNC: dict[str, Run] = {"pack --sync": lambda world: pack(world, "synced", sync=True)}
DERIVE: dict[str, Run] = {"derive": derive}
BUILD: dict[str, Run] = {"build": build}
SWAP: dict[str, Run] = {"derive": lambda world: derive(world, "swap")}
NEXT = f"swap/{STATE}/next"
VICTIM_BUCKET = f"victim/bucket_{BUCKET}"
ARRAY = "neighbour/vae_latents/img000"  # without its suffix

FIELDS = [
    Field("path of a shard", f"shards/{MANIFEST}", "shards", f"victim/{SHARD}", shard_path, OUTPUT),
    Field(
        "its bucket", f"shards/{MANIFEST}", "shards/bucket_", VICTIM_BUCKET, shard_bucket, OUTPUT
    ),
    *(
        Field(f"{key} of a run", f"shards/{MANIFEST}", "shards", "victim", of_run(key), OUTPUT)
        for key in ("buckets", "part", "split")
    ),
    Field("parts of a run", f"shards/{MANIFEST}", "shards", "victim", parts_of_run, OUTPUT),
    Field(
        "empty caption", f"shards/{MANIFEST}", f"shards/{STATE}/empty",
        f"victim/{SHARD}", empty_caption, OUTPUT,
    ),
    Field(
        "folder in a recipe", f"shards/{MANIFEST}", "shards", "neighbour/vae_latents",
        folder_of_component, OUTPUT,
    ),
    Field(
        "replaces", f"unfinished/{UNFINISHED}", "unfinished/bucket_", VICTIM_BUCKET,
        replaces, RESUME,
    ),
    *(
        Field(f"{key} of a run", f"unfinished/{UNFINISHED}", "unfinished", "victim", of_run(key),
              RESUME)
        for key in ("buckets", "part", "split")
    ),
    Field(
        "shards of the base", f"synced/{UNFINISHED}", "synced", f"victim/{SHARD}",
        inner("base", shard_path), SYNC,
    ),
    Field(
        "shards before a sync", f"synced/{UNFINISHED}", "synced", f"victim/{SHARD}",
        inner("sync", shard_path), SYNC,
    ),
    Field(
        "ids before a sync", f"synced/{UNFINISHED}", "synced", f"victim/{SHARD}", ids_before, SYNC
    ),
    Field(
        "changes before a sync", f"synced/{UNFINISHED}", "synced", f"victim/{SHARD}",
        changes_before, SYNC,
    ),
    Field("removed", f"store/{STATE}/rearrange.json", "store/vae_latents", ARRAY, removed, DERIVE),
    Field(
        "renamed from", f"store/{STATE}/rearrange.json", "store/vae_latents", ARRAY,
        renamed_from, DERIVE,
    ),
    Field(
        "renamed to", f"store/{STATE}/rearrange.json", "store/vae_latents", ARRAY,
        renamed_to, DERIVE,
    ),
    Field(
        "jsonl", f"store/{STATE}/rearrange.json", "store",
        "neighbour/approved_image_dataset.jsonl", jsonl, DERIVE,
    ),
    *(
        Field(
            f"file of {loader}", f"shards/{STATE}/loaders.json", "shards", f"victim/{file}",
            loader_file(loader),
            {
                "index --remove": lambda world, one=loader: index_for(world, one, remove=True),  # type: ignore[misc]
                "index": lambda world, one=loader: index_for(world, one),  # type: ignore[misc]
            },
        )
        for loader, file in {
            "energon": f"{SHARD}.idx",
            "dali": f".dali/{SHARD.removesuffix('.tar')}.idx",
            "wids": ".wids.json",
            "webshart": f"{SHARD.removesuffix('.tar')}.json",
            "hf": "README.md",
        }.items()
    ),
    *(
        Field(f"{key} of a plan", f"built/{STATE}/build/plan.json", "built", "victim", of_run(key),
              BUILD)
        for key in ("buckets", "part", "split")
    ),
    Field(
        "shard of a commit", f"built/{STATE}/build/commits/000000.json", f"built/{STATE}/build",
        f"victim/{SHARD}", shard_of_commit, BUILD, refused=False,
    ),
    Field(
        "id of a recomputed image", f"{NEXT}/approved_image_dataset.jsonl", f"{NEXT}/vae_latents",
        ARRAY, field_of_lines("image_id"), SWAP,
    ),
    Field(
        "folder of the next recipe", f"{NEXT}/{STATE}/recipe.json", NEXT, "neighbour/vae_latents",
        folder_of_component, SWAP,
    ),
    Field(
        "folder of a recipe", f"store/{STATE}/recipe.json", "store", "neighbour/vae_latents",
        folder_of_component, DERIVE,
    ),
    Field(
        "component in the provenance", f"store/{STATE}/provenance.json", "store",
        "neighbour/vae_latents", component_of_entry,
        {"derive --recompute": lambda world: derive(world, recompute=["vae"])}, refused=False,
    ),
    Field(
        "shard of an index", f"shards/{index.index_name(SHARD)}", "shards", f"victim/{SHARD}",
        shard_of_index,
        {name: OUTPUT[name] for name in ("open", "build --from", "index --for dali")},
    ),
]  # fmt: skip


def hostile(world: Path, field: Field) -> Iterator[str]:
    """Give names that lead to the target, and one that leads nowhere; make what they need."""
    base, target = world / field.base, world / field.target
    if field.base.endswith("bucket_"):  # then the name is what comes after it
        base = world / f"{field.base}x"
        base.mkdir(parents=True)
        yield f"x/{os.path.relpath(target, base)}"
        yield f"x/link/{target.name}"
    else:
        base.mkdir(parents=True, exist_ok=True)
        yield os.path.relpath(target, base)
        yield f"link/{target.name}"
        yield f"x/../{os.path.relpath(target, base)}"
        (base / "x").mkdir(exist_ok=True)
    (base / "link").symlink_to(target.parent)
    yield str(target)
    yield f"{target.name}\0"
    yield ""
    yield "x" * 5000


def edit(path: Path, put: Put, name: str) -> None:
    """Put a name into a document, which stays signed."""
    data = path.read_bytes() if path.exists() else b"[]"
    if path.suffix == ".idx":
        line, _, rest = data[:-8].partition(b"\n")
        document = json.loads(line)
        put(document, name)
        path.write_bytes(signed_index(json.dumps(document).encode() + b"\n" + rest))
    elif path.suffix == ".jsonl":
        documents = [json.loads(line) for line in data.splitlines()]
        put(documents, name)
        path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in documents))
    else:
        document = json.loads(data)
        signed = isinstance(document, dict) and document.pop("xxh3", None)
        put(document, name)
        text = json.dumps(document).encode()
        path.write_bytes(signed_manifest(text[:-1]) if signed else text)


def follow(world: Path, path: Path) -> None:
    """Let what has the checksum of a changed file name it as it is, as its author would."""
    if path.suffix == ".idx":
        xxh3 = xxhash.xxh3_64_hexdigest(path.read_bytes())
        listed = world / f"shards/{MANIFEST}"
        edit(listed, lambda done, _: done["shards"][0].update(index_xxh3=xxh3), "")


def outside(world: Path, field: Field) -> dict[str, object]:
    """Give all that is not in the folder of a file, or made by the command."""
    own = {field.file.partition("/")[0], "new"}
    found: dict[str, object] = {}
    for path in sorted(world.rglob("*")):
        name = path.relative_to(world)
        if name.parts[0] not in own:
            state = path.stat()
            data = path.read_bytes() if path.is_file() else None
            found[str(name)] = (data, state.st_ino, state.st_mtime_ns if data is not None else 0)
    return found


@pytest.mark.parametrize(
    ("field", "command"),
    [
        pytest.param(field, command, id=f"{field.file.rpartition('/')[2]}: {field.name}, {command}")
        for field in FIELDS
        for command in field.commands
    ],
)
def test_a_name_in_a_file_never_leads_out_of_the_folder(
    world: Path, field: Field, command: str, tally: Tally
) -> None:
    own = (field.file.partition("/")[0], "new")
    path = world / field.file
    for number in range(len(list(hostile(restored(world, *own), field)))):
        name = list(hostile(restored(world, *own), field))[number]
        edit(path, field.put, name)
        follow(world, path)
        before, error = outside(world, field), None
        try:
            field.commands[command](world)
        except ShardwrightError as caught:
            error = caught
        assert outside(world, field) == before, name
        assert error is not None or not field.refused, name
        if error is not None and field.refused:
            assert path.name in str(error), name
        tally(hostile_names=1)
