"""Builds on a Ray cluster of three nodes end in the bytes of one on this machine, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster as Machines

import shardwright
from shardwright.storage.urls import Url
from tests.building.builds import build, write_recipe
from tests.commands import COMMAND, wait_until
from tests.derive.pictures import make_images
from tests.durability.soak import SOAK
from tests.ray_machines import joined, machines_of
from tests.servers import use_s3

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]
SIZES = ((512, 512), (768, 512))
OPTIONS = ("--encoders", "sketch", "--shard-size", "4", "--engine", "ray", "--device", "cpu")


@pytest.fixture(scope="module")
def machines(moto: str) -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        use_s3(patch, moto)  # a node keeps the environment in which it starts
        with machines_of("one", "two", "three") as machines:
            yield machines


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some images, and beside them what a build on this machine makes of them."""
    images = make_images(tmp_path_factory.mktemp("cluster") / "images", 60, SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(images.parent)  # which a plan remembers
        build(images, images.parent / "local", shard_size=4, device="cpu")
    return images


def start(images: Path, output: object, machines: Machines) -> subprocess.Popen[str]:
    recipe = write_recipe(images.parent)
    given = ["--output-dir", str(output), "--recipe", str(recipe), *OPTIONS]
    return subprocess.Popen(
        [*COMMAND, "build", str(images), *given, "--ray-address", machines.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=images.parent,  # and so of its workers
    )


def finish(process: subprocess.Popen[str]) -> str:
    printed, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    return printed


def commits(output: Path) -> int:
    return len(list((output / ".shardwright/build/commits").glob("*.json")))


def has_commits(output: Path, count: int) -> bool:
    return commits(output) >= count


def workers(folder: Path) -> list[int]:
    """Find the processes that encode for a driver that was started in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"shardwright.engine.devices" in command and (process / "cwd").samefile(folder):
                found.append(int(process.name))
    return found


def assert_as_local(images: Path, output: Path) -> None:
    """All files that a shard folder keeps are those of the build on this machine."""
    local = images.parent / "local"
    names = sorted(path.relative_to(local) for path in local.rglob("*") if path.is_file())
    assert names == sorted(p.relative_to(output) for p in output.rglob("*") if p.is_file())
    for name in names:
        if name.name != "lock":
            assert (output / name).read_bytes() == (local / name).read_bytes(), name


def test_a_worker_a_node_and_the_driver_are_killed_and_the_bytes_are_those_of_a_local_build(
    machines: Machines, images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "shards"
    with joined(machines, "four") as node:
        process = start(images, output, machines)
        wait_until(partial(has_commits, output, 2), 90)
        os.kill(workers(images.parent)[0], signal.SIGKILL)
        wait_until(partial(has_commits, output, 4), 60)
        machines.remove_node(node, allow_graceful=False)
        wait_until(partial(has_commits, output, 6), 60)
        process.kill()
        process.communicate()
    before = commits(output)
    assert before < 16
    finish(start(images, output, machines))
    assert_as_local(images, output)


def test_a_build_on_a_cluster_to_an_object_store_has_the_bytes_of_a_local_one(
    machines: Machines, images: Path, bucket: Url
) -> None:
    finish(start(images, bucket / "shards", machines))
    local = images.parent / "local"
    for tar in local.rglob("*.tar"):
        name = tar.relative_to(local).as_posix()
        assert (bucket / "shards" / name).read_bytes() == tar.read_bytes(), name
    for name in (".shardwright/manifest.json",):
        assert (bucket / "shards" / name).read_bytes() == (local / name).read_bytes(), name
    report = shardwright.verify(
        str(bucket / "shards"), engine="ray", ray_address=machines.address, read_data=True
    )
    assert not report.damaged
    assert report.checked == {"shards": 16, "samples": 60}


@pytest.mark.skipif(not SOAK, reason="make soak")
@pytest.mark.parametrize("number", range(SOAK))
def test_kills_at_any_moment_lose_nothing(
    machines: Machines, images: Path, tmp_path: Path, number: int
) -> None:
    output = tmp_path / "shards"
    for kills in range(3):
        process = start(images, output, machines)
        wait_until(partial(has_commits, output, 3 * kills + number % 5 + 1), 60)
        if running := workers(images.parent):
            os.kill(running[number % len(running)], signal.SIGKILL)
        wait_until(partial(has_commits, output, 3 * kills + number % 5 + 2), 60)
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        process.communicate()
    finish(start(images, output, machines))
    assert_as_local(images, output)
