"""The journal: what was committed is never lost, and the JSONL is never half written."""

from __future__ import annotations

import errno
import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import NoSpaceError, SourceChangedError, StorageError
from shardwright.recipes import SPECIFICATION
from shardwright.storage import files
from shardwright.storage.disk import Disk
from shardwright.store import records
from shardwright.store.journal import Journal, Recovered, journal_path, merge
from tests.faults import FailingDisk, Killed, KillingDisk, WatchedDisk, contents

Lines = list[bytes]


def line(image_id: str, **fields: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"image_id": image_id, **fields}, separators=(",", ":")).encode()


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    """A JSONL of three records."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(line(name, old=1) + b"\n" for name in ("a", "b", "c")))
    return path


def lines(jsonl: Path) -> Lines:
    data = jsonl.read_bytes()
    assert data.endswith(b"\n")
    return data.split(b"\n")[:-1]


def test_scenario_updates_are_written_to_temporary_file_first(jsonl: Path) -> None:
    before = jsonl.read_bytes()
    with Journal(jsonl) as journal:
        journal.append({"image_id": "d"})
        journal.commit()
        assert journal_path(jsonl) == jsonl.with_name("a.jsonl.tmp")
        assert journal_path(jsonl).read_bytes() == b'{"image_id":"d"}\n'
        journal.append({"image_id": "e"})
        journal.commit()
        assert journal_path(jsonl).read_bytes() == b'{"image_id":"d"}\n{"image_id":"e"}\n'
        assert jsonl.read_bytes() == before
    assert lines(jsonl)[3:] == [line("d"), line("e")]
    assert contents(jsonl.parent).keys() == {"a.jsonl"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_scenario_graceful_shutdown_merges_temporary_file(
    jsonl: Path, error: type[BaseException]
) -> None:
    def work() -> None:
        with Journal(jsonl) as journal:
            journal.append({"image_id": "d"})
            journal.commit()
            journal.append({"image_id": "e"})  # queued, not committed: kept all the same
            raise error

    with pytest.raises(error):
        work()
    assert lines(jsonl)[3:] == [line("d"), line("e")]
    assert contents(jsonl.parent).keys() == {"a.jsonl"}


@pytest.mark.parametrize("cut", range(0, 3 * len(line("d") + b"\n") + 1, 3))
def test_an_error_in_the_midst_of_a_commit_leaves_complete_lines_to_the_next_run(
    jsonl: Path, cut: int
) -> None:
    class Torn(Disk):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            super().write(fd, data[:cut])
            raise MemoryError

    def work() -> None:
        with Journal(jsonl) as journal:
            for name in ("d", "e", "f"):
                journal.append({"image_id": name})
            journal.commit()

    before = jsonl.read_bytes()
    with files.using(Torn()), pytest.raises(MemoryError):
        work()
    assert jsonl.read_bytes() == before
    with Journal(jsonl) as journal:
        journal.append({"image_id": "g"})
    complete = [line("d"), line("e"), line("f")][: cut // len(line("d") + b"\n")]
    assert lines(jsonl)[3:] == [*complete, line("g")]
    assert contents(jsonl.parent).keys() == {"a.jsonl"}


def test_a_half_written_merge_of_a_killed_run_is_removed(jsonl: Path) -> None:
    jsonl.with_name("a.jsonl.merge.tmp").write_bytes(b"half a li")
    with Journal(jsonl) as journal:
        assert contents(jsonl.parent).keys() == {"a.jsonl"}
    assert journal.recovered is None


def test_a_link_stays_a_link_and_what_it_leads_to_gets_the_records(
    jsonl: Path, tmp_path: Path
) -> None:
    link = tmp_path / "store" / "b.jsonl"
    link.parent.mkdir()
    link.symlink_to(jsonl)
    with Journal(link) as journal:
        journal.append({"image_id": "d"})
    assert link.is_symlink()
    assert lines(jsonl)[3:] == [line("d")]
    assert contents(tmp_path).keys() == {"a.jsonl", "store", "store/b.jsonl"}


def test_an_updated_record_takes_its_old_place_and_the_last_update_wins(jsonl: Path) -> None:
    with Journal(jsonl) as journal:
        journal.append({"image_id": "d", "try": 1})
        journal.append({"image_id": "b", "try": 1})
        journal.append({"image_id": "e"})
        journal.append({"image_id": "d", "try": 2})
        journal.append({"image_id": "b", "try": 2})
    assert lines(jsonl) == [
        line("a", old=1),
        line("b", **{"try": 2}),
        line("c", old=1),
        line("d", **{"try": 2}),
        line("e"),
    ]


def test_a_record_is_one_compact_line_with_the_fields_of_the_recipe_first(tmp_path: Path) -> None:
    record = {
        "mine": 1,
        "also mine": "é\u2028\n",
        **dict.fromkeys(reversed(SPECIFICATION.record_fields), "x"),
    }
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.append(records.ordered(record, SPECIFICATION))
    (written,) = lines(tmp_path / "a.jsonl")
    assert list(json.loads(written)) == [*SPECIFICATION.record_fields, "mine", "also mine"]
    assert json.loads(written) == record
    assert b", " not in written
    assert b": " not in written


def test_a_run_without_records_leaves_the_jsonl_alone(jsonl: Path) -> None:
    before = jsonl.stat()
    with Journal(jsonl) as journal:
        journal.commit()
    after = jsonl.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with Journal(jsonl.with_name("none.jsonl")):
        pass
    assert contents(jsonl.parent).keys() == {"a.jsonl"}


def test_lines_that_are_no_records_are_kept_as_they_are(tmp_path: Path) -> None:
    jsonl = tmp_path / "a.jsonl"
    others = [b"", b"not json", b'{"image_id":7}', b'["a"]', b'{"image_id":"../a"}', b"\xff", b"  "]
    strange = b"\xef\xbb\xbf" + line("a") + b"\r\n" + b"\n".join(others) + b"\n" + line("b")
    jsonl.write_bytes(strange)  # a byte order mark, a Windows line end, no line end at last
    with Journal(jsonl) as journal:
        journal.append({"image_id": "b", "new": 1})
        journal.append({"image_id": "c"})
        journal.append({"image_id": "a", "new": 1})
    assert jsonl.read_bytes() == (
        b"\xef\xbb\xbf"
        + b"%s\r\n" % line("a", new=1)
        + b"\n".join(others)
        + b"\n%s\n%s\n" % (line("b", new=1), line("c"))
    )


def test_a_torn_last_line_is_dropped_wherever_it_was_cut(jsonl: Path) -> None:
    before = jsonl.read_bytes()
    updates = [line(name, caption="é" * 5) for name in ("d", "b", "e", "f", "g")]
    complete = b"".join(update + b"\n" for update in updates)
    first = len(b"".join(update + b"\n" for update in updates[:2]))
    for cut in range(first, len(complete) + 1):
        jsonl.write_bytes(before)
        journal_path(jsonl).write_bytes(complete[:cut])
        with Journal(jsonl) as journal:
            pass
        kept = complete[:cut].count(b"\n")
        torn = complete[cut - 1 : cut] != b"\n"
        assert journal.recovered == Recovered(records=kept, torn_lines=int(torn))
        old = [line("a", old=1), updates[1], line("c", old=1)]
        assert lines(jsonl) == [*old, updates[0], *updates[2:kept]]
        assert not journal_path(jsonl).exists()


def test_garbled_lines_of_a_power_cut_are_dropped_and_counted(jsonl: Path) -> None:
    garbled = bytes(4096)
    data = b"\n".join([line("d"), garbled, line("e"), line("f")[:7], b"[" * 10**5, line("g"), b""])
    journal_path(jsonl).write_bytes(data)
    with Journal(jsonl) as journal:
        pass
    assert journal.recovered == Recovered(records=3, torn_lines=3)
    assert lines(jsonl)[3:] == [line("d"), line("e"), line("g")]


def run(jsonl: Path) -> None:
    """Do what a resumable run does: add what is missing, update what is old, commit in groups."""
    with Journal(jsonl) as journal:
        there = {json.loads(found)["image_id"]: found for found in lines(jsonl)}
        wanted = [line(f"new{n:02}", caption="x" * n) for n in range(17)]
        wanted += [line("b", new=1), line("c", new=2), line("a", new=3)]
        for number, found in enumerate(wanted):
            record = json.loads(found)
            if there.get(record["image_id"]) != found:
                journal.append(record)
            if number % 4 == 3:
                journal.commit()


def test_a_kill_at_any_call_loses_nothing_and_the_rerun_ends_in_the_same_bytes(
    jsonl: Path, tmp_path: Path
) -> None:
    before = jsonl.read_bytes()
    with files.using(watched := WatchedDisk()):
        run(jsonl)
    after = jsonl.read_bytes()
    for nth in range(1, len(watched.calls) + 1):
        jsonl.write_bytes(before)
        with files.using(KillingDisk(nth)), pytest.raises(Killed):
            run(jsonl)
        assert jsonl.read_bytes() in (before, after)
        for again in range(1, 9):  # and again while it recovers from that
            with files.using(KillingDisk(again)), suppress(Killed):
                run(jsonl)
            assert all(json.loads(found) for found in lines(jsonl))
        run(jsonl)
        assert contents(tmp_path) == {"a.jsonl": after}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call_names_the_file_and_the_rerun_is_fine(
    jsonl: Path, tmp_path: Path, number: int
) -> None:
    before = jsonl.read_bytes()
    with files.using(watched := WatchedDisk()):
        run(jsonl)
    after = jsonl.read_bytes()
    for nth, name in enumerate(watched.names, 1):
        if (name, number) == ("unlink", errno.ENOSPC):
            continue  # a full disk lets files be removed
        jsonl.write_bytes(before)
        disk = FailingDisk(nth, number, once=True)
        with files.using(disk), pytest.raises(StorageError) as raised:
            run(jsonl)
        assert str(tmp_path) in str(raised.value)
        assert jsonl.read_bytes() in (before, after)
        run(jsonl)
        assert contents(tmp_path) == {"a.jsonl": after}


def test_a_full_disk_keeps_what_was_committed_until_there_is_room(jsonl: Path) -> None:
    def work() -> None:
        with Journal(jsonl) as journal:
            journal.append({"image_id": "d"})
            journal.commit()
            journal.append({"image_id": "e"})

    before = jsonl.read_bytes()
    # remove, append, sync folder, write, fsync: the next write finds no room
    with (
        files.using(FailingDisk(6, errno.ENOSPC, once=False)),
        pytest.raises(NoSpaceError, match=r"a\.jsonl\.tmp"),
    ):
        work()
    assert jsonl.read_bytes() == before
    with Journal(jsonl) as journal:
        pass
    assert journal.recovered == Recovered(records=1, torn_lines=1)
    assert lines(jsonl)[3:] == [line("d")]


def test_a_failed_fsync_of_the_journal_is_not_retried(jsonl: Path) -> None:
    def work() -> None:
        with Journal(jsonl) as journal:
            journal.append({"image_id": "d"})
            journal.commit()

    disk = FailingDisk(5, errno.EIO, once=True)
    with files.using(disk), pytest.raises(StorageError, match="Input/output error"):
        work()
    assert disk.names == ["unlink", "append", "fsync_folder", "write", "fsync"]


def test_a_jsonl_that_somebody_else_writes_to_meanwhile_is_not_replaced(jsonl: Path) -> None:
    class Meddling(Disk):
        def create(self, path: Path) -> int:
            with jsonl.open("ab") as file:
                file.write(line("mine") + b"\n")
            return super().create(path)

    def work() -> None:
        with Journal(jsonl) as journal:
            journal.append({"image_id": "d"})

    with files.using(Meddling()), pytest.raises(SourceChangedError, match=r"a\.jsonl: changed"):
        work()
    assert lines(jsonl)[3:] == [line("mine")]
    merge(jsonl)
    assert lines(jsonl)[3:] == [line("mine"), line("d")]


def test_a_merge_holds_no_records_in_memory(tmp_path: Path) -> None:
    jsonl = tmp_path / "a.jsonl"
    with jsonl.open("wb") as file:
        for number in range(20_000):
            file.write(line(f"img{number}", caption="x" * 1000) + b"\n")
    updates = b"".join(line(f"img{n}", caption="y" * 1000) + b"\n" for n in range(0, 20_000, 40))
    journal_path(jsonl).write_bytes(updates)
    tracemalloc.start()
    merge(jsonl)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_500_000  # the file has 20 MB
    changed = [found for found in lines(jsonl) if b"y" * 1000 in found]
    assert b"".join(found + b"\n" for found in changed) == updates


ids = st.sampled_from(["a", "b", "c", "d", "é", "x.y", "img 1"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
extras = st.dictionaries(st.text(max_size=4).filter(lambda key: key != "image_id"), values)
new_records = st.builds(lambda image_id, rest: {"image_id": image_id, **rest}, ids, extras)
main_lines = st.one_of(
    new_records.map(lambda record: json.dumps(record, ensure_ascii=False).encode()),
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(main_lines, max_size=8),
    st.booleans(),
    st.lists(st.lists(new_records, max_size=4), max_size=4),
)
def test_a_merge_equals_the_naive_one(
    tmp_path_factory: pytest.TempPathFactory,
    old: Lines,
    ended: bool,
    groups: list[list[dict[str, Any]]],
) -> None:
    jsonl = tmp_path_factory.mktemp("journal") / "a.jsonl"
    jsonl.write_bytes(b"\n".join(old) + (b"\n" if ended and old else b""))
    before = _split(jsonl.read_bytes())
    with Journal(jsonl) as journal:
        for group in groups:
            for record in group:
                journal.append(record)
            journal.commit()
    updates: dict[str | None, Any] = {
        record["image_id"]: record for group in groups for record in group
    }
    expected: list[Any] = [updates.get(_id(data), data) for data in before]
    seen = {_id(data) for data in before}
    expected += [record for image_id, record in updates.items() if image_id not in seen]
    assert [
        json.loads(have) if isinstance(want, dict) else have
        for have, want in zip(_split(jsonl.read_bytes()), expected, strict=True)
    ] == expected


def _split(data: bytes) -> Lines:
    found = data.split(b"\n")
    return found if found[-1] else found[:-1]


def _id(data: bytes) -> str | None:
    try:
        image_id = json.loads(data)["image_id"]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return image_id if isinstance(image_id, str) else None
