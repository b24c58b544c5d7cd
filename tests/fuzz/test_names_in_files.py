"""A name in a file of ours never leads out of its folder, whoever wrote the file.

Each field that names a file gets names that lead to a neighbour: another shard folder and another
store, which are complete. Nothing outside the folder may change, and the error names the file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import shardwright
from shardwright import ShardwrightError, StorageError
from shardwright.shards.format import index, records
from tests.durability.soak import Tally
from tests.fuzz.worlds import (
    BUCKET,
    MANIFEST,
    SHARD,
    STATE,
    UNFINISHED,
    Document,
    Put,
    Run,
    build,
    build_from,
    derive,
    edit,
    follow,
    index_for,
    pack,
    read,
    restored,
    verify,
)

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


def step(source: str | None, target: str | None) -> Put:
    """Make a list of one step, which has the name where there is None, unless it is a removal."""

    def put(document: Document, name: str) -> None:
        made = [None, name] if source is target is None else [source or name, target or name]
        document[:] = [{"what": "change"}, made]

    return put


def removed_folder(document: Document, name: str) -> None:
    document[:] = [{"what": "change"}, [None, f"{name}/"]]


def filled_folder(document: Document, name: str) -> None:
    document[:] = [{"what": "change"}, ["vae_latents/", f"{name}/"]]


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


def row_of_lines(document: Document, name: str) -> None:
    document[0]["__input__"][0] = name


def bucket_of_commit(document: Document, name: str) -> None:
    document["shard"]["bucket"] = name


def id_of_index(document: Document, name: str) -> None:
    document["ids"][0] = name


def look(world: Path) -> object:
    (world / "new").mkdir()
    return shardwright.look(world / "shards", report=world / "new/page.html")


def component_of_entry(document: Document, name: str) -> None:
    entry = next(iter(document["components"].values()))
    entry["component"] = {
        "name": "vae", "folder": name, "suffix": "vae.npy", "dtype": "<f2", "shape": [4],
    }  # fmt: skip


def shard_of_index(document: Document, name: str) -> None:
    document["shard"] = name


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
SWAP: dict[str, Run] = {"derive": lambda world: derive(world, "swap", recompute=["vae"])}
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
    *(
        Field(what, f"store/{STATE}/steps.jsonl", "store", f"{ARRAY}.npy", put, DERIVE)
        for what, put in {
            "removed": step(None, None),
            "renamed from": step(None, "vae_latents/img000.npy"),
            "renamed to": step("vae_latents/img000.npy", None),
        }.items()
    ),
    *(
        Field(what, f"store/{STATE}/steps.jsonl", "store", "neighbour/vae_latents", put, DERIVE)
        for what, put in {"removed folder": removed_folder, "filled folder": filled_folder}.items()
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
    *(
        Field(
            f"{key} of an input", f"built/{STATE}/build/inputs.jsonl", "built", "victim",
            field_of_lines(key), BUILD,
        )
        for key in ("image_id", "aspect_bucket")
    ),
    Field(
        "id in an input's row", f"built/{STATE}/build/inputs.jsonl", "built", "victim",
        row_of_lines, BUILD,
    ),
    Field(
        "bucket of a commit", f"built/{STATE}/build/commits/000000-*.json", "built/bucket_",
        VICTIM_BUCKET, bucket_of_commit, BUILD, refused=False,
    ),
    Field(
        "id in records", f"shards/{records.records_name(SHARD)}", "shards", "victim",
        field_of_lines("image_id"), {"build --from": build_from},
    ),
    Field(
        "id in records", f"shards/{records.records_name(SHARD)}", "shards", "victim",
        field_of_lines("image_id"), {"look": look}, refused=False,  # which goes on without it
    ),
    Field(
        "id of a sample", f"shards/{index.index_name(SHARD)}", "shards", "victim", id_of_index,
        OUTPUT, refused=False,
    ),
    Field(
        "shard of a commit", f"built/{STATE}/build/commits/000000-*.json", f"built/{STATE}/build",
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
    for number in range(len(list(hostile(restored(world, *own), field)))):
        name = list(hostile(restored(world, *own), field))[number]
        (path,) = world.glob(field.file) if "*" in field.file else [world / field.file]
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


LINKED: dict[str, tuple[str, Run]] = {
    "lock of a store": (f"store/{STATE}/lock", derive),
    "lock of shards": (f"shards/{STATE}/lock", lambda world: pack(world, append=True)),
    "lock of a build": (f"built/{STATE}/lock", build),
    "lock of indexed shards": (f"shards/{STATE}/lock", lambda world: index_for(world, "wids")),
    "journal": ("store/approved_image_dataset.jsonl.tmp", lambda world: derive_one_more(world)),
    "journal of facts": (f"store/{STATE}/facts.jsonl.tmp", lambda world: derive_one_more(world)),
}


def derive_one_more(world: Path) -> object:
    for suffix in (".png", ".txt"):
        shutil.copy(world / f"images/img000{suffix}", world / f"images/img002{suffix}")
    return derive(world)


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
@pytest.mark.parametrize("name", LINKED)
def test_a_link_in_the_place_of_a_file_that_is_written_to_is_not_followed(
    world: Path, name: str, there: bool
) -> None:
    file, command = LINKED[name]
    restored(world, file.partition("/")[0])
    target = world / "victim/foreign"
    if there:
        target.write_bytes(b"foreign")
    (world / file).unlink(missing_ok=True)
    (world / file).symlink_to(target)
    merged = there and "journal" in name  # as that of a killed run, and removed
    with nullcontext() if merged else pytest.raises(StorageError, match="is a link; remove it"):
        command(world)
    assert (target.read_bytes() if target.exists() else None) == (b"foreign" if there else None)
