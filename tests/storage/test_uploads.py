"""Files that are sent in parts, and read back in ranges."""

from __future__ import annotations

import gc
import hashlib
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import StorageError
from shardwright.storage import remote, s3, urls
from shardwright.storage.objects import NEW, ConditionError, Object, RefusedError
from shardwright.storage.remote import RemoteFile, RemotePlace
from shardwright.storage.urls import Url
from tests.durability.soak import times
from tests.flaky import Flaky
from tests.servers import new_bucket, use_s3
from tests.storage.conftest import Answer

PART = 5 << 20  # the least that S3 takes, but for the last


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART", PART)


def some_bytes(count: int) -> bytes:
    return random.Random(count).randbytes(count)


def sent(storage: RemotePlace, name: str, data: bytes) -> None:
    with storage.create(name) as upload:
        upload.put(data)
        upload.seal(len(data))


@pytest.mark.parametrize("size", [0, 1, PART, 2 * PART + 17])
def test_a_file_appears_when_it_is_published(root: Url, size: int) -> None:
    data, hasher = some_bytes(size), hashlib.sha256()
    storage = RemotePlace(root / "shards")
    with storage.create("bucket_a/0.tar", [hasher]) as upload:
        upload.put(data)
        upload.seal(size)
    assert list(storage.list(".tar")) == []
    etag = storage.publish("bucket_a/0.tar")
    assert list(storage.list(".tar")) == [("bucket_a/0.tar", size)]
    file = root / "shards/bucket_a/0.tar"
    assert file.read_bytes() == data
    assert file.stat().etag == etag
    assert hasher.digest() == hashlib.sha256(data).digest()
    assert list(root.objects.uploads("")) == []


def test_a_file_is_not_replaced_under_a_condition(root: Url) -> None:
    storage = RemotePlace(root)
    sent(storage, "file", some_bytes(PART + 1))
    storage.publish("file", NEW)
    sent(storage, "file", some_bytes(PART + 2))
    with pytest.raises(ConditionError):
        storage.publish("file", NEW)
    assert (root / "file").read_bytes() == some_bytes(PART + 1)
    assert list(root.objects.uploads("")) == []


def test_an_equal_file_counts_as_published(bucket: Url) -> None:
    storage = RemotePlace(bucket)
    etags = set()
    for _ in range(2):
        sent(storage, "file", some_bytes(PART + 1))
        etags.add(storage.publish("file", NEW))
    assert etags == {(bucket / "file").stat().etag}
    assert list(bucket.objects.uploads("")) == []


@pytest.mark.parametrize("size", [1, PART + 1])
def test_a_file_that_another_run_removes_at_once_is_an_error_with_its_name(
    bucket: Url, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    head = bucket.objects.head

    def removed(key: str) -> Object | None:
        bucket.objects.delete([key])
        return head(key)

    storage = RemotePlace(bucket)
    sent(storage, "0.tar", some_bytes(size))
    monkeypatch.setattr(bucket.objects, "head", removed)
    with pytest.raises(StorageError) as caught:
        storage.publish("0.tar")
    assert str(caught.value) == (
        f"{bucket}/0.tar: somebody else has removed it; run the same command again"
    )


_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>conflict</Message></Error>"


@pytest.mark.parametrize("theirs", [PART + 1, PART + 2, None])
def test_who_conflicts_with_another_writer_takes_only_an_equal_file(
    moto: str,
    proxy: Flaky,
    completing: Callable[[Callable[..., Answer]], None],
    theirs: int | None,
) -> None:
    ours, root = some_bytes(PART + 1), new_bucket(moto)
    storage = RemotePlace(root)
    if theirs is not None:
        sent(storage, "0.tar", some_bytes(theirs))
        storage.publish("0.tar")
    sent(storage, "0.tar", ours)
    asked = 0

    def conflict(*_: object) -> Answer:
        nonlocal asked
        asked += 1
        return 409, [("Content-Length", str(len(_CONFLICT)))], _CONFLICT

    completing(conflict)
    if theirs == len(ours):
        assert storage.publish("0.tar", NEW) == (root / "0.tar").stat().etag
    else:
        with pytest.raises(ConditionError):
            storage.publish("0.tar", NEW)
    assert asked == 1
    assert list(root.objects.uploads("")) == []


def test_bytes_may_come_from_an_open_file(bucket: Url, tmp_path: Path) -> None:
    data, hasher = some_bytes(PART + 99), hashlib.sha256()
    (tmp_path / "source").write_bytes(data)
    storage = RemotePlace(bucket)
    with storage.create("file") as upload, (tmp_path / "source").open("rb") as source:
        upload.put(b"head")
        assert upload.put_from(source.fileno(), len(data) + 5, hasher) == len(data)
        upload.seal(len(data) + 4)
    storage.publish("file")
    assert (bucket / "file").read_bytes() == b"head" + data
    assert hasher.digest() == hashlib.sha256(data).digest()


def test_a_file_of_another_length_is_not_sealed(bucket: Url) -> None:
    with RemotePlace(bucket).create("file") as upload:
        upload.put(b"123456")
        with pytest.raises(StorageError, match="wrote 7 bytes, but 6 were sent"):
            upload.seal(7)


def test_an_upload_that_is_not_finished_is_aborted(bucket: Url) -> None:
    storage = RemotePlace(bucket)
    with storage.create("file") as upload:
        upload.put(some_bytes(2 * PART))
        assert len(list(bucket.objects.uploads(""))) == 1
    assert list(bucket.objects.uploads("")) == []
    sent(storage, "other", some_bytes(PART + 1))
    storage.discard("other")
    assert list(bucket.objects.uploads("")) == []
    assert bucket.names() == []


@pytest.fixture
def other_bucket(ministack: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Url]:
    """A bucket at a server that knows when uploads began, and which are gone; moto does not."""
    use_s3(monkeypatch, ministack)
    yield new_bucket(ministack)
    urls._store.cache_clear()


def test_an_upload_that_another_run_aborts_is_an_error_with_its_name(other_bucket: Url) -> None:
    storage = RemotePlace(other_bucket / "shards")
    sent(storage, "0.tar", some_bytes(PART + 1))
    assert RemotePlace(other_bucket / "shards").abandon(["1.tar"]) == 0
    assert RemotePlace(other_bucket / "shards").abandon(["0.tar"]) == 1
    with pytest.raises(StorageError) as caught:
        storage.publish("0.tar")
    assert str(caught.value) == (
        f"{other_bucket}/shards/0.tar: its upload was aborted; run the same command again"
    )


def test_only_idle_uploads_of_the_folder_are_aborted(
    other_bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(RemotePlace(other_bucket / "shards"), "0.tar", some_bytes(PART + 1))
    sent(RemotePlace(other_bucket / "shards2"), "0.tar", some_bytes(PART + 1))
    assert RemotePlace(other_bucket / "shards").abandon() == 0
    monkeypatch.setattr(remote, "IDLE", -60)
    assert RemotePlace(other_bucket / "shards").abandon() == 1
    assert [key for key, _, _ in other_bucket.objects.uploads("")] == ["shards2/0.tar"]
    assert RemotePlace(other_bucket).abandon() == 1


def test_no_more_than_a_few_parts_are_in_memory(bucket: Url) -> None:
    piece, storage = some_bytes(1 << 16), RemotePlace(bucket)
    bucket.names()  # to be connected
    tracemalloc.start()
    with storage.create("file") as upload:
        for _ in range(16 * PART >> 16):
            upload.put(piece)
        upload.seal(16 * PART)
    storage.publish("file")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 7 * PART
    assert (bucket / "file").stat().st_size == 16 * PART


def test_what_the_store_got_is_compared_with_what_was_sent(
    bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compare = s3._compare

    def note(sent: str, reported: str | None) -> None:
        asked.append((sent, reported))
        compare(sent, reported)

    monkeypatch.setattr(s3, "_compare", note)
    storage = RemotePlace(bucket)
    sent(storage, "file", some_bytes(PART + 1))
    storage.publish("file")
    first, last = some_bytes(PART + 1)[:PART], some_bytes(PART + 1)[PART:]
    sums = {s3._text(hashlib.sha256(part).digest()) for part in (first, last)}
    assert {reported for _, reported in asked} >= sums
    assert {given for given, _ in asked} >= sums


@pytest.fixture(scope="module")
def small(ministack: str) -> Iterator[RemotePlace]:
    """A place that takes parts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        use_s3(patch, ministack)
        yield RemotePlace(new_bucket(ministack))
        urls._store.cache_clear()


@settings(max_examples=times(25), deadline=None)
@given(st.lists(st.binary(max_size=250), max_size=12), st.integers(1, 300))
def test_any_puts_give_the_bytes_joined(small: RemotePlace, puts: list[bytes], part: int) -> None:
    joined, hasher = b"".join(puts), hashlib.sha256()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "PART", part)
        patch.setattr(remote, "_BLOCK", part)
        with small.create("file", [hasher]) as upload:
            for data in puts:
                upload.put(data)
            upload.seal(len(joined))
        small.publish("file")
        assert (small.folder / "file").read_bytes() == joined
        assert hasher.digest() == hashlib.sha256(joined).digest()
        with small.open("file") as file:
            read = [file.pread(at, 40) for at in range(0, len(joined), 40)]
        assert b"".join(read) == joined


class Counted:
    """Counts the ranges that are read from a file, and how many at a time."""

    def __init__(self, file: Url, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int | None]] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._get = file.objects.get
        monkeypatch.setattr(file.objects, "get", self.get)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._lock:
            self.ranges.append((start, size))
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self._get(key, start, size)
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture
def file(bucket: Url, monkeypatch: pytest.MonkeyPatch) -> Url:
    """A file of ten blocks and a bit."""
    monkeypatch.setattr(remote, "_BLOCK", 1 << 16)
    (bucket / "file").write(some_bytes(10 * (1 << 16) + 9))
    return bucket / "file"


@pytest.mark.parametrize("step", [1 << 12, 100_000, 1 << 20])
def test_a_sequential_reader_gets_blocks_ahead(
    file: Url, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counted(file, monkeypatch)
    with RemoteFile(file) as reader:
        data = b"".join(reader.pread(at, step) for at in range(0, reader.size, step))
        assert reader.pread(reader.size, 10) == b""
    assert data == some_bytes(10 * (1 << 16) + 9)
    assert len(asked.ranges) <= 12
    assert asked.most <= 4


@pytest.mark.parametrize("start", [0, 100, 200_000])
def test_a_sequential_reader_fetches_nothing_twice_but_where_its_ranges_grow(
    file: Url, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST", 1 << 10)
    asked = Counted(file, monkeypatch)
    with RemoteFile(file) as reader:
        for at in range(start, reader.size, 3000):
            reader.pread(at, 3000)
        left = reader.size - start
    ends = sorted((at, at + (size or 0)) for at, size in asked.ranges)
    assert left <= sum(end - at for at, end in ends) <= left + 3 * 3000
    assert len(ends) <= 4 + left // (1 << 16) + 1


def test_a_random_reader_gets_only_what_it_asks_for(
    file: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_NEAR", 100)
    asked, data = Counted(file, monkeypatch), some_bytes(10 * (1 << 16) + 9)
    places = [500_000, 7, 300_000, 650_000, 100_000, 0]
    with RemoteFile(file) as reader:
        assert [reader.pread(at, 50) for at in places] == [data[at : at + 50] for at in places]
    assert asked.ranges == [(at, 50) for at in places]


def test_blocks_are_read_side_by_side(file: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    real = file.objects.get

    def slow(key: str, start: int = 0, size: int | None = None) -> bytes:
        time.sleep(0.1)
        return real(key, start, size)

    monkeypatch.setattr(file.objects, "get", slow)
    asked = Counted(file, monkeypatch)
    with RemoteFile(file) as reader:
        for at in range(0, reader.size, 1 << 14):
            reader.pread(at, 1 << 14)
    assert asked.most == 4


def test_a_reader_goes_on_after_a_read_that_failed(
    file: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST", 1 << 10)
    real, failed = file.objects.get, list[int]()

    def failing(key: str, start: int = 0, size: int | None = None) -> bytes:
        if start > 400_000 and not failed:
            failed.append(start)
            raise RefusedError("not now")
        return real(key, start, size)

    monkeypatch.setattr(file.objects, "get", failing)
    data, step = b"", 50_000
    with RemoteFile(file) as reader:
        while len(data) < reader.size:
            with suppress(StorageError):
                data += reader.pread(len(data), step)
    assert failed
    assert data == some_bytes(10 * (1 << 16) + 9)


def test_a_reader_that_is_closed_holds_nothing_of_what_it_has_read(file: Url) -> None:
    gc.collect()
    gc.disable()  # as between two collections, when many pictures are read
    tracemalloc.start()
    try:
        for _ in range(20):
            with RemoteFile(file) as reader:
                reader.pread(0, 1 << 18)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < 5 << 18
