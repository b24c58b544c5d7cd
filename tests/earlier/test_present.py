"""What this version leaves, finished or killed, later versions read, verify and go on with.

``present.tar.xz`` is made by ``present.py``.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.earlier import present
from tests.golden.cases import CASES, MORE
from tests.golden.relay import Relay, relayed
from tests.golden.steps import Steps
from tests.golden.workshop import HERE, Tree, Workshop

Layout = Callable[[str], Workshop]


@pytest.fixture(scope="session")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("present")
    with tarfile.open(present.ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def relay(moto: str) -> Iterator[Relay]:
    with relayed(moto) as relay:
        yield relay


@pytest.fixture
def laid_out(extracted: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Layout:
    """Lays out one folder of the archive, and the objects of its bucket."""

    def lay_out(name: str) -> Workshop:
        layout = present.layout(Path(name).name)
        shop = Workshop(tmp_path, layout, lambda: request.getfixturevalue("relay"))
        shutil.copytree(extracted / name, shop.folder)
        present.replace(shop.folder, present.PLACE, str(shop.folder).encode())
        if (objects := shop.folder / present.OBJECTS).exists():
            shop.bucket = shop.served()
            files = [path for path in objects.rglob("*") if path.is_file()]
            shop.bucket.replace({str(p.relative_to(objects)): p.read_bytes() for p in files})
            shutil.rmtree(objects)
        return shop

    return lay_out


def run(shop: Workshop, command: str, codes: tuple[int, ...] = (0,)) -> None:
    done = shop.finish(command.split()[1:])
    assert done.returncode in codes, f"{command}: exit {done.returncode}\n{done.stderr}"


def targets(shop: Workshop) -> list[str]:
    """Give all stores and shards that can be verified."""
    names = ("data/derived", "data/shards", "longer")
    found = [name for name in names if (shop.folder / name).exists()]
    return [*found, *(["s3://golden/shards"] if shop.bucket else [])]


def arrays_and_shards(tree: Tree) -> Tree:
    return {path: digest for path, digest in tree.items() if path.endswith((".npy", ".tar"))}


def expected(name: str) -> dict[str, str | None]:
    """Give the arrays and shards that ``tests/golden`` expects where a case changes them."""
    text = (HERE / f"expected/{present.layout(name)}/{name}.txt").read_text("utf-8")
    found = re.findall(r"^(?:-|[+~] ([0-9a-f]{64})) (.*\.(?:npy|tar))$", text, re.M)
    assert found
    return {path: digest or None for digest, path in found}


REFUSED = ("update", "prune")  # which were begun in another way


@pytest.mark.parametrize("name", REFUSED)
def test_an_update_that_was_killed_is_refused_by_name_and_can_be_deleted(
    name: str, laid_out: Layout
) -> None:
    shop = laid_out(f"killed/{name}")
    last, before = str(shop.steps_of(CASES[name])[-1]), shop.tree()
    for command in ("shardwright status", last):
        done = shop.finish(command.split()[1:])
        assert done.returncode == 2
        assert (
            "by an earlier version of Shardwright, is not finished; finish it with" in done.stderr
        )
    assert shop.tree() == before
    shutil.rmtree(shop.folder / "data/derived/.shardwright/next")
    run(shop, last, (0, 3))
    tree, after = shop.tree(), expected(name)
    assert {path: tree.get(path) for path in after} == after


@pytest.mark.parametrize("name", [name for name in present.KILLED if name not in REFUSED])
def test_a_run_that_was_killed_can_be_looked_at_and_ends_like_one_that_was_not(
    name: str, laid_out: Layout
) -> None:
    shop = laid_out(f"killed/{name}")
    for target in targets(shop):
        run(shop, f"shardwright verify {target}", (0, 2, 12))
    if (shop.folder / "data/derived").exists():
        run(shop, "shardwright status")
    last = f"{shop.steps_of(CASES[name])[-1]} {CASES[name].again}"
    run(shop, last, (0, 3))
    for target in targets(shop):
        run(shop, f"shardwright verify {target} --read-data")
    tree, after = shop.tree(), expected(name)
    assert {path: tree.get(path) for path in after} == after


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        (
            "pack",
            ["derive", "pack --append", "pack --sync", "pack --resume --sha256 --shard-size 2"],
        ),
        ("pack-split", ["derive", "pack --append", "pack --sync"]),
        ("build", ["build --encoders sketch --shard-size 2", "build --append"]),
    ],
)
def test_what_is_finished_is_ok_and_stays_as_it_is(
    name: str, commands: list[str], laid_out: Layout
) -> None:
    shop = laid_out(f"finished/{name}")
    before = arrays_and_shards(shop.tree())
    for target in targets(shop):
        run(shop, f"shardwright verify {target} --read-data")
    if name != "build":
        run(shop, "shardwright status")
        run(shop, "shardwright verify data/shards --against data/derived")
    for command in commands:
        run(shop, f"shardwright {command}", (0, 3))
    assert arrays_and_shards(shop.tree()) == before


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("pack", ["derive", "pack --append"]),
        ("pack-split", ["derive", "pack --append"]),
        ("build", ["build --append"]),
    ],
)
def test_what_is_finished_is_added_to(name: str, commands: list[str], laid_out: Layout) -> None:
    shop = laid_out(f"finished/{name}")
    before = arrays_and_shards(shop.tree())
    with Steps(shop) as steps:
        for step in MORE:
            steps.take(step)
    for command in commands:
        run(shop, f"shardwright {command}", (0, 3))
    after = arrays_and_shards(shop.tree())
    assert {path: after[path] for path in before} == before
    assert after.keys() > before.keys()
    for target in targets(shop):
        run(shop, f"shardwright verify {target} --read-data")
