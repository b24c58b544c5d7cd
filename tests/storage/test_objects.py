"""Each operation on objects, at two servers that speak S3 and one of Azure."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from shardwright.storage import remote, s3
from shardwright.storage.objects import NEW, ConditionError
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Url, names_below
from tests.durability.soak import SOAK

ODD = [
    "a b",
    "c+d",
    "e%20f",
    "g%",
    "é",
    "日本.tar",
    "h&i=j",
    "k'l\"m",
    "n#o",
    "~p",
    "(q)",
    "r;s:@,$",
]


def test_what_is_written_is_read(root: Url) -> None:
    file = root / "folder/name"
    etag = file.write(b"0123456789")
    assert file.read_bytes() == b"0123456789"
    found = file.head()
    assert found is not None
    assert (found.key, found.st_size, found.etag) == ("folder/name", 10, etag)
    assert abs(found.st_mtime_ns / 1e9 - time.time()) < 60
    assert file.stat() == (file.key, 10, found.st_mtime_ns, etag)
    [(name, listed)] = root.walk()
    assert name == "folder/name"
    assert listed._replace(st_mtime_ns=0) == found._replace(st_mtime_ns=0)


def test_ranges_are_read_up_to_the_end(root: Url) -> None:
    file = root / "file"
    file.write(b"0123456789")
    assert file.read_range(0, None) == b"0123456789"
    assert file.read_range(3, None) == b"3456789"
    assert file.read_range(0, 1) == b"0"
    assert file.read_range(2, 5) == b"23456"
    assert file.read_range(8, 5) == b"89"
    assert file.read_range(10, 5) == b""
    assert file.read_range(99, 5) == b""
    assert file.read_range(4, 0) == b""


def test_an_empty_object_is_read(root: Url) -> None:
    (root / "empty").write(b"")
    assert (root / "empty").read_bytes() == b""
    assert (root / "empty").read_range(0, 10) == b""
    assert (root / "empty").stat().st_size == 0


def test_what_is_not_there_is_missing(root: Url) -> None:
    file = root / "nothing"
    assert file.head() is None
    assert not file.exists()
    assert file.names() == []
    for read in (file.read_bytes, file.stat, lambda: file.read_range(5, 5)):
        with pytest.raises(FileNotFoundError, match=str(file)):
            read()
    file.remove()


def test_only_one_create_wins(root: Url) -> None:
    file = root / "commit"
    assert RemotePlace(file.parent).claim(file.name, b"first")
    assert not RemotePlace(file.parent).claim(file.name, b"second")
    assert file.read_bytes() == b"first"
    file.remove()
    assert RemotePlace(file.parent).claim(file.name, b"third")


def test_a_write_under_a_condition_needs_the_etag_of_now(root: Url) -> None:
    file = root / "manifest"
    with pytest.raises(ConditionError):
        file.write(b"0", "5d41402abc4b2a76b9719d911017c592")
    first = file.write(b"1", NEW)
    second = file.write(b"2", first)
    assert first != second
    with pytest.raises(ConditionError):
        file.write(b"3", first)
    assert file.read_bytes() == b"2"
    assert file.stat().etag == second


def test_folders_are_what_is_before_a_slash(root: Url) -> None:
    for name in ("a/1", "a/2", "a/b/3", "ab/4", "z"):
        (root / name).write(name.encode())
    assert root.names() == ["a", "ab", "z"]
    assert (root / "a").names() == ["1", "2", "b"]
    assert names_below(root / "a") == ["1", "2", "b/3"]
    assert names_below(root) == ["a/1", "a/2", "a/b/3", "ab/4", "z"]
    assert (root / "a").is_dir()
    assert not (root / "a").is_file()
    assert (root / "z").is_file()
    assert not (root / "z").is_dir()
    assert root.exists()
    assert not (root / "a/b/c").exists()


def test_names_may_have_any_characters(root: Url) -> None:
    files = [root / "folder" / name / name for name in ODD]
    for file in files:
        file.write(str(file).encode())
        assert file.read_bytes() == str(file).encode()
        assert file.head() is not None
    assert (root / "folder").names() == sorted(ODD)
    assert [root / name for name, _ in root.walk()] == sorted(files)
    for file in files:
        file.remove()
    assert not root.is_dir()


def test_lists_are_complete_and_sorted_beyond_one_page(
    root: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, page = (1203, 1000) if SOAK else (123, 50)
    monkeypatch.setattr(s3, "_AT_ONCE", page)
    names = [f"{number:04}" for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: (root / "many" / name).write(b""), names))
    assert (root / "many").names() == names
    assert names_below(root / "many") == names
    rest = [each.key for each in root.objects.list("many/", f"many/{names[-4]}")]
    assert rest == [f"many/{name}" for name in names[-3:]]
    root.objects.delete([f"many/{name}" for name in names])
    assert root.names() == []


def test_many_are_removed_in_few_requests(root: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_DELETED", 5)
    names = [f"{number:02}" for number in range(12)]
    for name in names:
        (root / "many" / name).write(b"")
    (root / "other").write(b"")
    counts, delete = [], root.objects.delete

    def counted(keys: Sequence[str]) -> None:
        counts.append(len(keys))
        delete(keys)

    monkeypatch.setattr(root.objects, "delete", counted)
    RemotePlace(root / "many").remove_all(keep=["03"])
    assert names_below(root) == ["many/03", "other"]
    assert counts == [5, 5, 1]
    delete(["many/02", "many/03", "many/04", "other"])
    assert not root.is_dir()


def test_threads_that_begin_together_share_one_client(root: Url) -> None:
    start = Barrier(8)

    def connect(_: int) -> object:
        start.wait()
        return root.objects

    with ThreadPoolExecutor(8) as pool:
        assert len({id(each) for each in list(pool.map(connect, range(8)))}) == 1


def test_of_sixteen_threads_that_create_one_wins(root: Url) -> None:
    start = Barrier(16)
    root.names()  # to be connected

    def create(number: int) -> bool:
        start.wait()
        return RemotePlace(file.parent).claim(file.name, b"%d" % number)

    with ThreadPoolExecutor(16) as pool:
        for turn in range(3):
            file = root / f"file{turn}"
            won = list(pool.map(create, range(16)))
            assert won.count(True) == 1
            assert file.read_bytes() == b"%d" % won.index(True)


def test_of_several_processes_that_create_one_wins(bucket: Url) -> None:
    file = bucket / "commit"
    code = (
        "import sys, pickle; from shardwright.storage.remote import RemotePlace\n"
        "file = pickle.loads(bytes.fromhex(sys.argv[1])); file.exists(); print(flush=True)\n"
        "input(); print(RemotePlace(file.parent).claim(file.name, sys.argv[2].encode()))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, pickle.dumps(file).hex(), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = [process.communicate()[0].strip() for process in processes]
    assert sorted(won) == ["False", "False", "False", "True"]
    assert file.read_bytes() == b"%d" % won.index("True")


def test_a_forked_child_has_connections_of_its_own(bucket: Url) -> None:
    (bucket / "parent").write(b"1")
    child = os.fork()
    if not child:
        try:
            (bucket / "child").write((bucket / "parent").read_bytes() + b"2")
        finally:
            os._exit(0)
    for number in range(20):  # at the same time
        (bucket / f"{number}").write(b"")
    os.waitpid(child, 0)
    assert (bucket / "child").read_bytes() == b"12"


def test_a_url_is_the_same_after_pickling() -> None:
    url = Url("s3://bucket/folder/")
    again = pickle.loads(pickle.dumps(url))
    assert again == url == Url("s3://bucket/folder")
