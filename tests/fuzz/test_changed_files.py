"""Whatever a file of ours says, a command does its work or raises an error of ours: no other.

Each file of stores, shards and interrupted runs gets something odd in the place of one value, with
right checksums, as its author would. Time and memory stay within what the few bytes are worth.
"""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import DamageError, ShardwrightError
from shardwright.shards.format import index, records
from tests.durability.soak import Tally, times
from tests.fuzz.worlds import (
    DEEP,
    LOADERS,
    MANIFEST,
    SHARD,
    STATE,
    UNFINISHED,
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

EACH = 3  # changes of a file for each command that reads it
MEMORY = 1 << 31  # bytes more than before: what one claimed count alone would have taken


ODD: list[object] = [
    *(None, True, -1, 0, 1, 7, 300_000_000, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70), 0.5, 1e308),
    *("", "\0", "a\0b", "..", "../x", "/", "/dev/zero", "x" * 300, "é" * 200, "\ud800", "%s%n"),
    *("64x64", "1x1", "0x0", "99999999x99999999", "img000", "width >= 1", "[[[[", "a b"),
    *([], {}, [1], [[]], ["../x"], {"a": 1}, {"": None}, {"\0": "\0"}, DEEP),
]


def new(world: Path) -> Path:
    """Make the folder of what a command writes."""
    (world / "new").mkdir()
    return world / "new"


def look(folder: str) -> Run:
    return lambda world: shardwright.look(world / folder, report=new(world) / "page.html")


def duplicates(folder: str) -> Run:
    return lambda world: shardwright.look(world / folder, duplicates=new(world) / "list.jsonl")


def status(folder: str) -> Run:
    return lambda world: shardwright.status(world / folder)


def verified(folder: str, **options: Any) -> Run:  # noqa: ANN401
    return lambda world: shardwright.verify(world / folder, workers=1, **options)


def made_from(world: Path) -> object:
    made = world / "made"
    return shardwright.build(
        from_=made, components=["t5"], output_dir=world / "new", encoders="sketch", device="cpu"
    )


SHARDS: dict[str, Run] = {
    "look": look("shards"),
    "look --duplicates": duplicates("shards"),
    "verify": verified("shards", read_data=True),
    "verify --against": lambda w: shardwright.verify(w / "shards", against=w / "store", workers=1),
    "open": read,
    "index": lambda world: index_for(world, *LOADERS),
    "index --remove": lambda world: index_for(world, *LOADERS, remove=True),
    "pack --append": lambda world: pack(world, append=True),
    "pack --resume": lambda world: pack(world, resume=True),
    "pack --sync": lambda world: pack(world, sync=True),
    "pack --overwrite": lambda world: pack(world, overwrite=True),
    "build --from": build_from,
    "status": status("store"),
}
BUILT: dict[str, Run] = {
    "build": lambda world: build(world, "made"),
    "build --append": lambda world: build(world, "made", append=True),
    "build --from": made_from,
    "verify": verified("made"),
    "look": look("made"),
}
BEGUN: dict[str, Run] = {
    "build": build,
    "build --overwrite": lambda world: build(world, overwrite=True),
    "verify": verified("built"),
}
STORE: dict[str, Run] = {
    "look": look("store"),
    "status": status("store"),
    "status --export": lambda w: shardwright.status(w / "store", export=new(w) / "table.csv"),
    "verify": verified("store", read_data=True),
    "derive": derive,
    "derive --update": lambda world: derive(world, update=True, prune=True),
    "derive --recompute": lambda world: derive(world, recompute=["t5"]),
    "pack": lambda world: pack(world, "new"),
}
SWAP: dict[str, Run] = {
    "derive": lambda world: derive(world, "swap", recompute=["vae"]),
    "status": status("swap"),
    "verify": verified("swap"),
}
RESUME: dict[str, Run] = {
    "pack --resume": lambda world: pack(world, "unfinished", resume=True),
    "pack --overwrite": lambda world: pack(world, "unfinished", overwrite=True),
    "verify": lambda world: verify(world, "unfinished"),
    "look": look("unfinished"),
}
SYNC: dict[str, Run] = {
    "pack --sync": lambda world: pack(world, "synced", sync=True),
    "verify": lambda world: verify(world, "synced"),
}
NEXT = f"swap/{STATE}/next"
JSONL = "approved_image_dataset.jsonl"

FILES = {
    f"shards/{MANIFEST}": SHARDS,
    f"shards/{index.index_name(SHARD)}": SHARDS,
    f"shards/{records.records_name(SHARD)}": SHARDS,
    f"shards/{STATE}/loaders.json": {name: SHARDS[name] for name in ("index", "index --remove")},
    f"unfinished/{UNFINISHED}": RESUME,
    f"synced/{UNFINISHED}": SYNC,
    f"made/{MANIFEST}": BUILT,
    f"made/{index.index_name(SHARD)}": BUILT,
    f"made/{records.records_name(SHARD)}": BUILT,
    f"made/{STATE}/build/plan.json": BUILT,
    f"made/{STATE}/build/inputs.jsonl": BUILT,
    f"made/{STATE}/built/*.jsonl": BUILT,
    f"built/{UNFINISHED}": BEGUN,
    f"built/{STATE}/build/plan.json": BEGUN,
    f"built/{STATE}/build/inputs.jsonl": BEGUN,
    f"built/{STATE}/build/commits/000000-*.json": BEGUN,
    f"store/{JSONL}": STORE,
    f"store/{STATE}/facts.jsonl": STORE,
    f"store/{STATE}/provenance.json": STORE,
    f"store/{STATE}/recipe.json": STORE,
    f"store/{STATE}/paths.json": STORE,
    f"store/{STATE}/steps.jsonl": STORE,
    f"store/{STATE}/failures.jsonl": STORE,
    f"{NEXT}/{JSONL}": SWAP,
    f"{NEXT}/{STATE}/facts.jsonl": SWAP,
    f"{NEXT}/{STATE}/provenance.json": SWAP,
    f"{NEXT}/{STATE}/recipe.json": SWAP,
}
STEPS = [
    {"what": "change of images"},
    ["vae_latents/img000.npy.tmp", "vae_latents/img000.npy"],
    [None, "vae_latents/img001.npy"],
    [f"{STATE}/next/t5_hidden/", "t5_hidden/"],
    [None, f"{STATE}/next/"],
]
FAILURE = {
    "image_id": "img001", "image_path": "images/img001.png", "reason": "broken_image",
    "detail": "cut off", "components": ["t5"],
}  # fmt: skip
MADE: dict[str, list[Any]] = {
    "steps.jsonl": STEPS,
    "failures.jsonl": [FAILURE],
}  # which only some stores have


@pytest.mark.parametrize(
    ("folder", "command"),
    {(file.partition("/")[0], command): None for file in FILES for command in FILES[file]},
)
def test_each_command_does_its_work_on_the_files_as_they_are(
    world: Path, folder: str, command: str
) -> None:
    run = next(FILES[file][command] for file in FILES if file.startswith(f"{folder}/"))
    interrupted = folder in ("unfinished", "synced") and command in ("verify", "look")
    expected = pytest.raises(ShardwrightError, match="interrupted")
    with expected if interrupted else nullcontext():
        run(world)


def leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to every value within a JSON document."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from leaves(inner, (*path, key))


def change(draw: random.Random, told: list[object]) -> Callable[[Any, str], None]:
    """Give what changes one value, or takes it away."""

    def put(document: Any, _: str) -> None:  # noqa: ANN401
        *way, last = draw.choice(list(leaves(document)))
        holder = document
        for key in way:
            holder = holder[key]
        if draw.random() < 0.1:
            del holder[last]
            told[:] = [*way, last, "gone"]
        else:
            holder[last] = draw.choice(ODD)
            told[:] = [*way, last, holder[last]]

    return put


@contextmanager
def little_memory() -> Iterator[None]:
    """Let no more be taken than a small folder is worth."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("file", "command"), [(file, command) for file, all_ in FILES.items() for command in all_]
)
def test_a_file_that_says_something_odd_ends_in_an_error_of_ours_or_is_of_no_matter(
    world: Path, file: str, command: str, tally: Tally
) -> None:
    for number in range(times(EACH)):
        draw, told = random.Random(f"{file} {command} {number}"), list[object]()
        restored(world, file.partition("/")[0], "new")
        (path,) = world.glob(file) if "*" in file else [world / file]
        if (made := MADE.get(path.name)) is not None:
            path.write_text("".join(f"{json.dumps(line)}\n" for line in made))
        edit(path, change(draw, told), "")
        follow(world, path)
        try:
            with little_memory():
                FILES[file][command](world)
        except ShardwrightError:
            pass
        except BaseException as error:
            error.add_note(f"{file}: {told}")
            raise
        tally(files_changed=1)


@pytest.mark.parametrize("folder", ["shards", "made"])
def test_a_shape_that_the_bytes_of_the_shards_cannot_hold_is_refused_before_it_is_made(
    world: Path, folder: str
) -> None:
    def claim(document: Any, _: str) -> None:  # noqa: ANN401
        (text,) = (each for each in document["recipe"]["components"] if each["name"] == "t5")
        text["shape"][0] = text["mask"]["length"] = 1 << 20

    edit(world / folder / MANIFEST, claim, "")
    with pytest.raises(
        DamageError, match=r"samples in [0-9,]+ bytes, but each has [0-9,]+ or more"
    ):
        FILES[f"{folder}/{MANIFEST}"]["build --from"](world)
    assert not (world / "new").exists()
