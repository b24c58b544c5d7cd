"""A migration that is killed or fails anywhere: run again, it ends in the same bytes."""

from __future__ import annotations

import errno
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import shardwright
from shardwright import files, schema
from shardwright.errors import NoSpaceError, StorageError
from shardwright.files import Disk
from tests import stage1
from tests.faults import Counting, FailsAt, FullFrom, Killed, KilledAt, contents
from tests.stage1 import record


@pytest.fixture
def pristine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Stage 1 store of twenty lines: most are sound, one array is there already."""
    # Groups of hundreds are for speed; here several of them must fit into twenty records.
    monkeypatch.setattr(importlib.import_module("shardwright.migrate"), "_GROUP_ARRAYS", 6)
    lines = [record(f"img{n:02}", seed=n) for n in range(18)]
    lines[7]["vae_latent"] = [[[0.5]]] * 16
    folder = tmp_path / "pristine"
    stage1.write(folder, *lines[:9], "not json", *lines[9:], record("short", dinov3_embedding=[]))
    shardwright.migrate(derived_dir=stage1.write(tmp_path / "one", lines[3]).parent)
    (folder / "dinov3").mkdir()
    shutil.copy(tmp_path / "one/dinov3/img03.npy", folder / "dinov3")
    return folder


def copy(pristine: Path, name: object) -> Path:
    return Path(shutil.copytree(pristine, pristine.parent / str(name)))


def migrate(folder: Path, disk: Disk | None = None) -> None:
    with files.using(disk or Counting()):
        shardwright.migrate(derived_dir=folder)


def unbroken(pristine: Path) -> tuple[dict[str, bytes | None], int]:
    """Give what an unbroken run leaves behind, and how many calls it makes."""
    folder = copy(pristine, "unbroken")
    migrate(folder, counting := Counting())
    expected = contents(folder)
    assert expected[schema.JSONL_NAME + ".stage1.bak"] == contents(pristine)[schema.JSONL_NAME]
    assert sum(name.endswith(".npy") for name in expected) == 19
    return expected, len(counting.calls)


def assert_nothing_half_written(
    folder: Path, pristine: Path, expected: dict[str, bytes | None]
) -> None:
    for name, data in contents(folder).items():
        if name == schema.JSONL_NAME:
            assert data in (contents(pristine)[name], expected[name])
        elif not name.endswith(".tmp"):
            assert data == expected[name]


def test_a_kill_at_every_call(pristine: Path) -> None:
    expected, calls = unbroken(pristine)
    for nth in range(1, calls + 1):
        folder = copy(pristine, nth)
        with pytest.raises(Killed):
            migrate(folder, KilledAt(nth))
        assert_nothing_half_written(folder, pristine, expected)
        with suppress(Killed):  # and again on the way back
            migrate(folder, KilledAt(nth // 2 + 1))
        assert_nothing_half_written(folder, pristine, expected)
        migrate(folder)
        assert contents(folder) == expected
        shutil.rmtree(folder)


def test_an_error_at_every_call(pristine: Path) -> None:
    expected, calls = unbroken(pristine)
    for nth in range(1, calls + 1):
        folder = copy(pristine, nth)
        with pytest.raises(StorageError) as raised:
            migrate(folder, FailsAt(nth, (errno.EIO, errno.ENOSPC)[nth % 2]))
        assert str(folder) in str(raised.value)
        assert_nothing_half_written(folder, pristine, expected)
        migrate(folder)
        assert contents(folder) == expected
        shutil.rmtree(folder)


def test_a_disk_that_fills_up_loses_nothing_and_keeps_no_temporary_file(pristine: Path) -> None:
    expected, calls = unbroken(pristine)
    for nth in range(1, calls - 3, 5):
        folder = copy(pristine, nth)
        with pytest.raises(NoSpaceError, match="free"):
            migrate(folder, FullFrom(nth, errno.ENOSPC))
        assert not any(name.endswith(".tmp") for name in contents(folder))
        assert contents(folder)[schema.JSONL_NAME] == contents(pristine)[schema.JSONL_NAME]
        migrate(folder)
        assert contents(folder) == expected
        shutil.rmtree(folder)


def test_an_interrupt_leaves_the_jsonl_as_it_was(pristine: Path) -> None:
    class Interrupted(Counting):
        def meet(self, count: int, call: str) -> None:
            if count == 60:
                raise KeyboardInterrupt

    expected, _ = unbroken(pristine)
    folder = copy(pristine, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        migrate(folder, Interrupted())
    assert contents(folder)[schema.JSONL_NAME] == contents(pristine)[schema.JSONL_NAME]
    assert not any(name.endswith(".tmp") for name in contents(folder))
    migrate(folder)
    assert contents(folder) == expected


def test_arrays_are_on_the_disk_before_the_jsonl_speaks_of_them(pristine: Path) -> None:
    class Watching(Disk):
        def __init__(self) -> None:
            self.synced: set[int] = set()
            self.events: list[str] = []

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.synced.add(os.fstat(fd).st_ino)

        def rename(self, source: Path, target: Path) -> None:
            assert os.stat(source).st_ino in self.synced, f"{target} was published unsynced"
            self.events.append(target.parent.name if target.suffix == ".npy" else target.name)
            super().rename(source, target)

        def fsync_folder(self, path: Path) -> None:
            self.events.append(f"sync {path.name}")
            super().fsync_folder(path)

    folder = copy(pristine, "watched")
    migrate(folder, disk := Watching())
    main = disk.events.index(schema.JSONL_NAME)
    for name in ("dinov3", "vae_latents"):
        last_array = len(disk.events) - 1 - disk.events[::-1].index(name)
        assert last_array < disk.events.index(f"sync {name}", last_array) < main
    assert disk.events[main - 1 : main + 2] == [
        "sync watched",  # the backup's name
        schema.JSONL_NAME,
        "sync watched",
    ]


def larger(folder: Path, count: int) -> Path:
    """Make a Stage 1 store that takes a while."""
    lines = [json.dumps(record("imgNAME", seed=n)) for n in range(30)]
    stage1.write(folder, *(lines[n % 30].replace("NAME", f"{n:04}") for n in range(count)))
    return folder


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start a real migration and wait until it is at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shardwright", "migrate", "--derived-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not (folder / schema.COMPONENTS[-1].folder).exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: signal.Signals, code: int) -> None:
    folder = larger(tmp_path / "derived", 900)
    original = contents(folder)[schema.JSONL_NAME]
    process = start(folder)
    process.send_signal(number)
    assert process.wait() == code
    after = contents(folder)
    assert after[schema.JSONL_NAME] == original
    assert not any(name.endswith((".tmp", ".bak")) for name in after)


def test_random_kills_of_a_real_process(tmp_path: Path) -> None:
    pristine = larger(tmp_path / "pristine", 300)
    folder = copy(pristine, "unbroken")
    migrate(folder)
    expected = contents(folder)
    dice = random.Random(0)
    killed = 0
    for number in range(12):
        folder = copy(pristine, number)
        process = start(folder)
        time.sleep(dice.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert_nothing_half_written(folder, pristine, expected)
        migrate(folder)
        assert contents(folder) == expected
        shutil.rmtree(folder)
    assert killed >= 3  # the dice are fair, the machine's speed is not
