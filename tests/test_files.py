"""A file is published whole or not at all: what the folder holds after every way it can end."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright import LockedError, NoSpaceError, StorageError
from shardwright.storage import files
from shardwright.storage.disk import Disk
from shardwright.storage.files import NewFile, using
from shardwright.storage.local import LocalPlace
from tests.faults import Call, WatchedDisk
from tests.tars import listing

BUFFER = 1 << 22  # what a NewFile gathers before it writes


class Failing(WatchedDisk):
    """Fails one kind of call, always or from the nth on."""

    def __init__(self, call: str, number: int, *, nth: int = 1) -> None:
        super().__init__()
        self.call, self.number, self.left = call, number, nth

    def before(self, call: Call) -> None:
        if call.name == self.call:
            self.left -= 1
            if self.left <= 0:
                raise OSError(self.number, os.strerror(self.number))


# Writing a file whole


def test_a_disk_waits_for_the_bytes_of_a_file_and_the_names_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other tests nothing waits for the disk: see conftest."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    files.write(tmp_path / "a", b"hello")
    assert synced == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]


def test_a_written_file_stands_alone_in_its_folder(tmp_path: Path) -> None:
    files.write(tmp_path / "a", b"hello")
    assert listing(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"hello"


def test_a_written_file_replaces_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"the old and longer one")
    files.write(tmp_path / "a", b"new")
    assert listing(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_file_is_synced_before_it_is_named_and_its_folder_after(tmp_path: Path) -> None:
    with using(disk := Failing("", 0)):
        files.write(tmp_path / "a", b"hello")
    assert disk.names == ["create", "write", "fsync", "rename", "fsync_folder"]


@pytest.mark.parametrize("call", ["create", "write", "fsync", "rename"])
def test_after_a_failure_the_old_file_is_there_and_nothing_else_has_its_name(
    call: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with using(Failing(call, errno.EIO)), pytest.raises(StorageError, match=str(tmp_path / "a")):
        files.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert listing(tmp_path) == ["a"]


def test_a_failure_to_sync_the_folder_is_told(tmp_path: Path) -> None:
    with using(Failing("fsync_folder", errno.EIO)), pytest.raises(StorageError):
        files.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_an_exception_in_the_block_discards_the_file(tmp_path: Path) -> None:
    def interrupted() -> None:
        with NewFile(tmp_path / "a") as file:
            file.write(b"half")
            assert listing(tmp_path) == ["a.tmp"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert listing(tmp_path) == []


def test_leaving_the_block_unsealed_discards_the_file(tmp_path: Path) -> None:
    with NewFile(tmp_path / "a") as file:
        file.write(b"half")
    assert listing(tmp_path) == []


def test_a_sealed_file_waits_under_its_temporary_name(tmp_path: Path) -> None:
    with NewFile(tmp_path / "a") as file:
        file.write(b"whole")
        file.seal(5)
    assert listing(tmp_path) == ["a.tmp"]
    files.publish(file.tmp, file.path)
    assert listing(tmp_path) == ["a"]


@pytest.mark.parametrize("claimed", [4, 6])
def test_a_file_of_another_length_is_never_sealed(claimed: int, tmp_path: Path) -> None:
    with NewFile(tmp_path / "a") as file:
        file.write(b"whole")
        with pytest.raises(StorageError, match=r"a\.tmp"):
            file.seal(claimed)
    assert listing(tmp_path) == []


def test_a_leftover_of_a_killed_run_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.tmp").write_bytes(b"half of something much longer")
    files.write(tmp_path / "a", b"whole")
    assert listing(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_a_link_in_place_of_the_leftover_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "a.tmp").symlink_to("precious")
    files.write(tmp_path / "a", b"whole")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (tmp_path / "a").is_symlink()


class Trickling(Disk):
    """Writes at most three bytes at a time, as a file system may."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return super().write(fd, data[:3])


def test_short_writes_are_continued(tmp_path: Path) -> None:
    with using(Trickling()):
        files.write(tmp_path / "a", b"hello, world")
    assert (tmp_path / "a").read_bytes() == b"hello, world"


class Swallowing(Disk):
    """Says that everything was written, and writes only half."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        super().write(fd, data[: len(data) // 2])
        return len(data)


def test_a_disk_that_swallows_bytes_is_found_out(tmp_path: Path) -> None:
    with using(Swallowing()), pytest.raises(StorageError, match="10 bytes, but the disk holds 5"):
        files.write(tmp_path / "a", b"0123456789")
    assert listing(tmp_path) == []


def test_a_failed_fsync_is_never_retried_and_the_file_is_discarded(tmp_path: Path) -> None:
    class Once(Failing):
        """Would succeed if it were asked again, as a kernel that dropped the pages does."""

        def before(self, call: Call) -> None:
            super().before(call)
            assert self.left >= 0

    disk = Once("fsync", errno.EIO)
    with using(disk), pytest.raises(StorageError, match="Input/output error"):
        files.write(tmp_path / "a", b"hello")
    assert disk.names == ["create", "write", "fsync", "unlink"]
    assert listing(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["create", "write", "fsync", "mkdir"])
def test_a_full_disk_is_named_with_path_and_cure(call: str, number: int, tmp_path: Path) -> None:
    path = tmp_path / "new" / "a" if call == "mkdir" else tmp_path / "a"

    def write() -> None:
        files.make_folder(path.parent)
        files.write(path, b"hello")

    with using(Failing(call, number)), pytest.raises(NoSpaceError) as caught:
        write()
    assert str(path.parent) in str(caught.value)
    assert "full" in str(caught.value)
    assert "make room" in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert listing(tmp_path) == []


def test_the_first_error_is_the_one_reported(tmp_path: Path) -> None:
    class Twice(Failing):
        def unlink(self, path: Path) -> None:
            raise PermissionError(errno.EPERM, "and this too")

    with using(Twice("write", errno.EIO)), pytest.raises(StorageError, match="Input/output error"):
        files.write(tmp_path / "a", b"hello")


def test_the_seam_closes_again(tmp_path: Path) -> None:
    with pytest.raises(StorageError), using(Failing("create", errno.EIO)):
        files.write(tmp_path / "a", b"hello")
    files.write(tmp_path / "a", b"hello")
    assert listing(tmp_path) == ["a"]


# Gathered files


class Cached(Disk):
    """A file system without a way around the cache."""

    def bypass_cache(self, fd: int, bypass: bool) -> bool:
        return False


class Watched(Disk):
    """Notes which writes went around the cache."""

    def __init__(self) -> None:
        self.direct = False
        self.writes: list[tuple[bool, int]] = []

    def bypass_cache(self, fd: int, bypass: bool) -> bool:
        done = super().bypass_cache(fd, bypass)
        self.direct = done and bypass
        return done

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.writes.append((self.direct, len(data)))
        return super().write(fd, data)


def pattern(length: int) -> bytes:
    """Bytes in which nothing repeats at any power of two."""
    block = bytes(range(251))
    return (block * (length // 251 + 1))[:length]


LENGTHS = sorted(
    {
        0,
        1,
        511,
        512,
        4095,
        4096,
        4097,
        *(
            BUFFER * whole + part
            for whole in (1, 2)
            for part in (-4097, -4096, -513, -1, 0, 1, 512, 4095, 4096, 4097)
        ),
    }
)


def gather(path: Path, data: bytes, piece: int) -> None:
    with NewFile(path) as file:
        for at in range(0, len(data), piece):
            file.put(data[at : at + piece])
        file.seal(len(data))
    files.publish(file.tmp, path)


@pytest.mark.parametrize("piece", [1_000_003, 5 * BUFFER])
def test_both_routes_give_the_same_bytes_for_any_length(piece: int, tmp_path: Path) -> None:
    for length in LENGTHS:
        data = pattern(length)
        with using(Watched()):
            gather(tmp_path / "direct", data, piece)
        with using(Cached()):
            gather(tmp_path / "cached", data, piece)
        assert (tmp_path / "direct").read_bytes() == data
        assert (tmp_path / "cached").read_bytes() == data
    assert listing(tmp_path) == ["cached", "direct"]


def test_only_whole_blocks_go_around_the_cache(tmp_path: Path) -> None:
    with using(disk := Watched()):
        gather(tmp_path / "a", pattern(BUFFER + 4096 + 1), 1_000_003)
    assert [length for _, length in disk.writes] == [BUFFER, 4097]
    for direct, length in disk.writes:
        assert not direct or length % 4096 == 0
    assert not disk.writes[-1][0]


def test_small_files_do_not_try_to_go_around_the_cache(tmp_path: Path) -> None:
    with using(disk := Watched()):
        gather(tmp_path / "a", pattern(8192), 8192)
    assert disk.writes == [(False, 8192)]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_a_file_system_in_memory_works_too() -> None:
    path = Path(f"/dev/shm/shardwright-test-{os.getpid()}")
    data = pattern(2 * BUFFER + 4097)
    try:
        gather(path, data, 1_000_003)
        assert path.read_bytes() == data
    finally:
        path.unlink(missing_ok=True)


def test_bytes_of_other_files_are_gathered_between_pieces(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(BUFFER + 77))
    fd = os.open(source, os.O_RDONLY)
    seen, whole = hashlib.sha256(), hashlib.sha256()
    with NewFile(tmp_path / "a", [whole]) as file:
        file.put(b"head")
        assert file.put_from(fd, BUFFER + 77, seen) == BUFFER + 77
        file.put(b"tail")
        file.seal(BUFFER + 77 + 8)
    os.close(fd)
    expected = b"head" + pattern(BUFFER + 77) + b"tail"
    assert file.tmp.read_bytes() == expected
    assert whole.digest() == hashlib.sha256(expected).digest()
    assert seen.digest() == hashlib.sha256(pattern(BUFFER + 77)).digest()


def test_a_source_that_ends_early_is_told_by_its_count(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"short")
    fd = os.open(source, os.O_RDONLY)
    with NewFile(tmp_path / "a") as file:
        assert file.put_from(fd, 100, hashlib.sha256()) == 5
    os.close(fd)
    assert listing(tmp_path) == ["source"]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_gathered_file_that_fails_is_discarded(nth: int, tmp_path: Path) -> None:
    with using(Failing("write", errno.ENOSPC, nth=nth)), pytest.raises(NoSpaceError):
        gather(tmp_path / "a", pattern(2 * BUFFER + 1), BUFFER)
    assert listing(tmp_path) == []


# Folders


def test_folders_are_made_with_their_parents_and_each_is_synced(tmp_path: Path) -> None:
    with using(disk := Failing("", 0)):
        files.make_folder(tmp_path / "a" / "b")
        files.make_folder(tmp_path / "a" / "b")
    assert listing(tmp_path) == ["a", "a/b"]
    assert disk.names == ["mkdir", "fsync_folder"] * 2


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files.remove(tmp_path / "a")
    files.remove(tmp_path / "a")
    assert listing(tmp_path) == []


def test_free_bytes_are_known_of_a_place_that_is_not_there_yet(tmp_path: Path) -> None:
    assert LocalPlace(tmp_path / "not" / "yet").free_bytes() > 0


# The lock


def test_the_second_writer_fails_at_once_and_is_told_who_the_first_is(tmp_path: Path) -> None:
    with LocalPlace(tmp_path).lease():
        with pytest.raises(LockedError) as caught, LocalPlace(tmp_path).lease():
            pytest.fail("two writers")
        assert f"process {os.getpid()} on " in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    with LocalPlace(tmp_path).lease():
        pass
    assert listing(tmp_path) == [".shardwright", ".shardwright/lock"]


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LocalPlace(tmp_path).lease():
        raise ZeroDivisionError
    with LocalPlace(tmp_path).lease():
        pass


HOLDER = """
import sys, time
from pathlib import Path
from shardwright.storage.local import LocalPlace
with LocalPlace(Path(sys.argv[1])).lease():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_killed_holders_lock_is_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        place = LocalPlace(tmp_path)
        with pytest.raises(LockedError, match=f"process {holder.pid} on"), place.lease():
            pytest.fail("two writers")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with LocalPlace(tmp_path).lease():
        pass


CONTENDER = """
import sys
from pathlib import Path
from shardwright import LockedError
from shardwright.storage.local import LocalPlace
root = Path(sys.argv[1])
won = 0
for _ in range(300):
    try:
        with LocalPlace(root).lease():
            (root / "inside").mkdir()  # fails if anybody else is inside
            (root / "inside").rmdir()
            won += 1
    except LockedError:
        pass
print(won)
"""


def test_contenders_are_never_inside_together(tmp_path: Path) -> None:
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, tmp_path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    won = []
    for contender in contenders:
        out, _ = contender.communicate(timeout=300)
        assert contender.returncode == 0
        won.append(int(out))
    assert sum(won) > 0
    assert not (tmp_path / "inside").exists()


def test_a_folder_that_is_yet_to_be_made_is_writable_where_its_parent_is(tmp_path: Path) -> None:
    LocalPlace(tmp_path / "a" / "b").require_writable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_file_system_that_takes_no_files_is_not_called_full() -> None:
    with pytest.raises(StorageError, match=r"^/proc: cannot write to this folder; change its perm"):
        LocalPlace(Path("/proc/shards")).require_writable()
