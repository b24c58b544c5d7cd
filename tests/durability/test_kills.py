"""Real processes, killed by the kernel at random moments, until the work is done."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardwright import pack
from tests.commands import COMMAND, children, is_alive, wait_until
from tests.durability.scenarios import small_store, twenty
from tests.durability.soak import times
from tests.faults import contents

KILLS = 12


@pytest.mark.timeout(60 * times(2))
@pytest.mark.parametrize("workers", [1, 2])
def test_after_any_number_of_kills_the_bytes_are_those_of_an_unbroken_run(
    workers: int, tmp_path: Path
) -> None:
    store = small_store(tmp_path / "derived", twenty(60))
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", shard_size=3, workers=1)
    command = [
        *(*COMMAND, "pack", "--resume", "--shard-size", "3", "--workers", str(workers)),
        *("--derived-dir", str(store.root), "--output-dir", str(tmp_path / "shards")),
    ]
    started = time.monotonic()
    subprocess.run([*command[:-1], str(tmp_path / "timed")], check=True, capture_output=True)
    usual = time.monotonic() - started
    draw = random.Random(workers)
    kills = 0
    while kills < times(KILLS):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            _, told = process.communicate(timeout=usual * draw.uniform(0.3, 1.1))
        except subprocess.TimeoutExpired:
            offspring = children(process.pid)
            process.kill()
            process.communicate()
            kills += 1
            wait_until(lambda left=offspring: not any(map(is_alive, left)))  # type: ignore[misc]
            continue
        assert process.returncode == 0, told
        assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")
        shutil.rmtree(tmp_path / "shards")  # there was nothing left to kill: begin anew
    subprocess.run(command, check=True, capture_output=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children")
def test_an_overwrite_that_is_killed_again_and_again_ends_right(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", twenty(40))
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", shard_size=4, workers=1)
    pack(derived_dir=store.root, output_dir=tmp_path / "shards", shard_size=3, workers=1)
    command = [
        *(*COMMAND, "pack", "--overwrite", "--shard-size", "4", "--workers", "2"),
        *("--derived-dir", str(store.root), "--output-dir", str(tmp_path / "shards")),
    ]
    draw = random.Random(0)
    for _ in range(times(5)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.1, 0.5))
        offspring = children(process.pid) if process.poll() is None else []
        process.kill()
        process.wait()
        wait_until(lambda left=offspring: not any(map(is_alive, left)))  # type: ignore[misc]
    subprocess.run(command, check=True, capture_output=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "unbroken")
