"""The pool: everything arrives, errors are raised, and no worker outlives its work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shardwright import ShardwrightError, StorageError
from shardwright.engine.local import cores, run
from tests.commands import is_alive, wait_until
from tests.stores import make_store, records


def spell(word: str) -> Iterator[str]:
    yield from word


def who(_: object) -> Iterator[int]:
    yield os.getpid()


def fail(task: int) -> Iterator[int]:
    yield task
    if task == 3:
        raise StorageError("shard 3: no")
    time.sleep(0.01)


def hang(_: object) -> Iterator[int]:
    yield os.getpid()
    time.sleep(60)


def die(task: int) -> Iterator[int]:
    yield task
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def unsendable(_: object) -> Iterator[int]:
    raise ValueError(lambda: None)
    yield 0


def large(task: int) -> Iterator[bytes]:
    yield bytes([task]) * 3_000_000


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_everything_that_tasks_say_arrives(workers: int) -> None:
    words = ["one", "two", "three", "", "five", "six", "seven"] * 5
    assert sorted(run(spell, words, workers)) == sorted("".join(words))
    assert multiprocessing.active_children() == []


def test_one_workers_messages_keep_their_order() -> None:
    assert "".join(run(spell, ["in order"], 4)) == "in order"


def test_no_tasks_are_no_trouble() -> None:
    assert list(run(spell, [], 3)) == []


def test_one_worker_is_this_process_and_several_are_others() -> None:
    assert set(run(who, range(3), 1)) == {os.getpid()}
    others = set(run(who, range(20), 3))
    assert os.getpid() not in others
    assert 1 <= len(others) <= 3


def test_no_more_workers_are_started_than_there_are_tasks() -> None:
    pids = set()
    with closing(run(hang, range(2), 8)) as messages:
        for pid in messages:
            pids.add(pid)
            if len(pids) == 2:
                assert len(multiprocessing.active_children()) == 2
                break


def test_messages_larger_than_a_pipe_arrive_whole() -> None:
    found = sorted(run(large, range(6), 2))
    assert found == [bytes([task]) * 3_000_000 for task in range(6)]


def test_tasks_are_taken_only_when_a_worker_is_free() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    with closing(run(hang, tasks(), 2)) as messages:
        next(messages)
        assert len(taken) <= 3


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_error_in_a_task_is_raised_here_and_ends_the_pool(workers: int) -> None:
    seen: list[int] = []
    with pytest.raises(StorageError, match="shard 3: no"):
        seen.extend(run(fail, range(1000), workers))
    assert 3 in seen
    assert len(seen) < 1000
    assert multiprocessing.active_children() == []


def test_an_error_that_cannot_travel_is_still_an_error() -> None:
    with pytest.raises(ShardwrightError):
        list(run(unsendable, range(4), 2))
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_a_clear_error() -> None:
    with pytest.raises(ShardwrightError, match=r"worker process died \(exit code -9\).*--workers"):
        list(run(die, range(4), 4))
    assert multiprocessing.active_children() == []


def test_closing_early_kills_the_workers() -> None:
    messages = run(hang, range(4), 2)
    pids = {next(messages), next(messages)}
    assert all(map(is_alive, pids))
    messages.close()
    assert not any(map(is_alive, pids))
    assert multiprocessing.active_children() == []


def test_an_error_in_the_caller_kills_the_workers() -> None:
    pids = []

    def interrupted() -> None:
        with closing(run(hang, range(4), 2)) as messages:
            pids.append(next(messages))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_alive(pids[0])


ORPHANING = """
import os, sys, time
from shardwright.engine.local import run
def busy(_):
    yield os.getpid()
    while True:  # busy, so that no closed pipe would tell it anything
        pass
def idle(task):
    yield os.getpid()
    if task:
        time.sleep(60)
function = {"busy": busy, "idle": idle}[sys.argv[1]]
for pid in run(function, range(2), 2):
    print(pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills orphans for us")
@pytest.mark.parametrize("kind", ["busy", "idle"])
def test_workers_of_a_killed_parent_are_gone(kind: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANING, kind], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(pid) for pid in set(pids))
        parent.kill()
        parent.wait()
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


UNGUARDED = """
import sys
import shardwright
print("started")
summary = shardwright.pack(
    derived_dir=sys.argv[1], output_dir=sys.argv[2], shard_size=1, workers=3)
print(summary.written_samples)
"""


def test_a_script_without_a_main_guard_works(tmp_path: Path) -> None:
    store = make_store(tmp_path / "derived", records(6))
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, script, store.root, tmp_path / "shards"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == ("started\n6\n", "")


def test_cores_are_those_this_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0))


def test_ctrl_c_in_the_midst_of_a_fork_is_not_the_workers_to_handle() -> None:
    script = (
        "import os, signal\n"
        "from shardwright.engine.local import run\n"
        "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "print(list(run(lambda task: iter([task]), [1, 2], 2)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("[1, 2]\n", "[2, 1]\n")
