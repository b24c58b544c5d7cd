"""A fault or a kill at every single file operation of a pack, then the same command again."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardwright import NoSpaceError, StorageError, pack
from shardwright.files import Disk, using
from tests.stores import Store, line, make_store, record
from tests.tars import digests, shards


class Counted(Disk):
    """Counts the operations, and does something before the nth of them."""

    def __init__(self, nth: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.count, self.nth, self.act = 0, nth, act

    def _meet(self) -> None:
        self.count += 1
        if self.count == self.nth:
            self.act()

    def create(self, path: Path) -> int:
        self._meet()
        return super().create(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._meet()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._meet()
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._meet()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._meet()
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._meet()
        super().mkdir(path)

    def fsync_folder(self, path: Path) -> None:
        self._meet()
        super().fsync_folder(path)


def run_pack(store: Store, output: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    pack(
        derived_dir=store.root,
        output_dir=output,
        shard_size=2,
        workers=1,
        overwrite=overwrite,
        resume=resume,
    )


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def killed() -> None:
    os._exit(137)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: no power is cut here, and a sync costs nothing."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def pair(place: Path) -> Store:
    """Five samples in two buckets, which make three shards."""
    buckets = ("1024x1024", "832x1216")
    return make_store(place / "derived", [record(f"i{n}", buckets[n % 2]) for n in range(5)])


def operations(store: Store, output: Path, **flags: bool) -> int:
    with using(disk := Counted()):
        run_pack(store, output, **flags)
    assert disk.count > 20
    return disk.count


def assert_whole(output: Path, expected: dict[str, str]) -> None:
    found = digests(output) if output.exists() else {}
    for path in shards(output):
        name = str(path.relative_to(output))
        assert found[name] == expected[name]


@pytest.mark.parametrize(
    ("act", "error", "again"),
    [(broken, StorageError, "overwrite"), (full, NoSpaceError, "resume")],
)
def test_a_fault_at_any_operation_leaves_whole_shards_and_can_be_repeated(
    act: Callable[[], None], error: type[Exception], again: str, pair: Store, place: Path
) -> None:
    total = operations(pair, place / "whole")
    expected = digests(place / "whole")
    for nth in range(1, total + 1):
        output = place / f"shards{nth}"
        with using(Counted(nth, act)), pytest.raises(error):
            run_pack(pair, output)
        assert not list(output.glob("bucket_*/*.tmp"))
        assert_whole(output, expected)
        run_pack(pair, output, **{again: True})
        assert digests(output) == expected
        shutil.rmtree(output)


def kill_at(nth: int, store: Store, output: Path, **flags: bool) -> None:
    """Pack in a child that dies at the nth operation as if by kill -9."""

    def child() -> None:
        with using(Counted(nth, killed)):
            run_pack(store, output, **flags)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 137


@pytest.mark.parametrize("again", ["overwrite", "resume"])
def test_a_kill_at_any_operation_can_be_repeated(again: str, pair: Store, place: Path) -> None:
    total = operations(pair, place / "whole")
    expected = digests(place / "whole")
    for nth in range(1, total + 1):
        output = place / f"shards{nth}"
        kill_at(nth, pair, output)
        assert_whole(output, expected)
        run_pack(pair, output, **{again: True})
        assert digests(output) == expected
        shutil.rmtree(output)


@pytest.mark.parametrize("again", ["overwrite", "resume"])
def test_a_kill_while_old_shards_are_replaced_can_be_repeated(
    again: str, pair: Store, place: Path
) -> None:
    old = place / "old"
    pack(derived_dir=pair.root, output_dir=old, shard_size=1, workers=1)
    pair.write_lines(line({**fields, "caption": "new"}) for fields in pair.records)
    whole = place / "whole"
    shutil.copytree(old, whole)
    total = operations(pair, whole, overwrite=True)
    expected, before = digests(whole), digests(old)
    for nth in range(1, total + 1):
        output = place / f"shards{nth}"
        shutil.copytree(old, output)
        kill_at(nth, pair, output, overwrite=True)
        found = digests(output)
        for path in shards(output):  # old or new, but whole
            name = str(path.relative_to(output))
            assert found[name] in (before.get(name), expected.get(name))
        begun = (output / ".shardwright" / "unfinished.json").exists()
        if again == "overwrite" or not begun:  # else there is nothing to resume
            run_pack(pair, output, overwrite=True)
        else:
            run_pack(pair, output, resume=True)
        assert digests(output) == expected
        shutil.rmtree(output)


def test_a_kill_while_repeating_a_killed_run_can_be_repeated(pair: Store, place: Path) -> None:
    total = operations(pair, place / "whole")
    expected = digests(place / "whole")
    for nth in range(1, total + 1, 3):
        output = place / f"shards{nth}"
        kill_at(total // 2, pair, output)
        with using(disk := Counted()):
            shutil.copytree(output, copy := place / "copy")
            run_pack(pair, copy, resume=True)
        shutil.rmtree(copy)
        if nth > disk.count:
            break
        kill_at(nth, pair, output, resume=True)
        run_pack(pair, output, resume=True)
        assert digests(output) == expected
