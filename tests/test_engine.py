"""The engine: everything arrives, errors are raised, and no worker outlives its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from shardwright import ShardwrightError, StorageError, errors, interrupts
from shardwright.engine import local
from shardwright.engine.local import Local, cores
from tests import tasks
from tests.commands import children, is_alive, wait_until
from tests.stores import make_store, records

ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, ShardwrightError)
]
ROOT = Path(__file__).parents[1]


@pytest.fixture(params=["fork", "fresh"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How workers start."""
    monkeypatch.setattr(local, "_may_fork", lambda: request.param == "fork")
    return str(request.param)


@pytest.fixture(autouse=True)
def _no_children_stay() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) == before


# A test forks although pytest has threads: they hold no lock that a worker needs.
ways = [
    pytest.mark.usefixtures("way"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


class TestBothWays:
    pytestmark = ways

    @pytest.mark.parametrize("workers", [1, 2, 3, 9])
    def test_everything_that_tasks_say_arrives(self, workers: int) -> None:
        words = ["one", "two", "three", "", "five", "six", "seven"] * 5
        assert sorted(Local(workers).run(tasks.spell, words)) == sorted("".join(words))

    def test_one_workers_messages_keep_their_order(self) -> None:
        found = "".join(Local(4).run(tasks.spell, ["in order", "IN ORDER"]))
        assert "".join(filter(str.islower, found)) == "inorder"
        assert "".join(filter(str.isupper, found)) == "INORDER"

    def test_one_worker_is_this_process_and_several_are_others(self) -> None:
        assert set(Local(1).run(tasks.who, range(3))) == {os.getpid()}
        with closing(Local(3).run(tasks.hang, range(20))) as pids:
            others = {next(pids) for _ in range(3)}
        assert len(others - {os.getpid()}) == 3

    def test_a_single_task_runs_here(self) -> None:
        assert list(Local(8).run(tasks.who, [None])) == [os.getpid()]
        assert list(Local(8).run(tasks.who, [])) == []

    def test_no_more_workers_are_started_than_there_are_tasks(self) -> None:
        before = len(children(os.getpid()))
        with closing(Local(8).run(tasks.hang, range(2))) as pids:
            next(pids)
            assert len(children(os.getpid())) == before + 2

    def test_messages_and_tasks_larger_than_a_pipe_arrive_complete(self) -> None:
        found = sorted(Local(2).run(tasks.large, range(6)))
        assert found == [bytes([task]) * 3_000_000 for task in range(6)]
        assert sorted(Local(2).run(tasks.measure, found)) == [(n, 3_000_000) for n in range(6)]

    def test_a_task_may_be_anything_also_none(self) -> None:
        assert len(list(Local(2).run(tasks.who, [None] * 5))) == 5

    def test_tasks_are_taken_only_when_a_worker_is_free(self) -> None:
        taken = []

        def numbers() -> Iterator[int]:
            for number in range(10):
                taken.append(number)
                yield number

        with closing(Local(2).run(tasks.hang, numbers())) as messages:
            next(messages)
            assert taken == [0, 1]

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_an_error_in_a_task_is_raised_here_and_ends_the_others(self, workers: int) -> None:
        seen: list[int] = []
        with pytest.raises(StorageError, match="shard 3: no"):
            seen.extend(Local(workers).run(tasks.fail, range(1000)))
        assert 3 in seen
        assert len(seen) < 1000

    @pytest.mark.parametrize("kind", ERRORS)
    def test_an_error_keeps_its_type_its_attributes_and_its_traceback(
        self, kind: type[ShardwrightError]
    ) -> None:
        error = kind("is broken", path="a.tar", fix="copy it again")
        error.add_note("run again")
        with pytest.raises(ShardwrightError) as caught:
            list(Local(2).run(tasks.throw, [error, error]))
        assert (type(caught.value), str(caught.value)) == (kind, str(error))
        assert (caught.value.path, caught.value.what) == ("a.tar", "is broken")
        assert caught.value.fix == "copy it again"
        assert caught.value.__notes__ == ["run again"]
        assert "in throw\n    raise error" in str(caught.value.__cause__)

    def test_an_error_that_pickling_would_break_arrives_as_its_text(self) -> None:
        with pytest.raises(ShardwrightError, match=r"^ValueError: \('said', <function"):
            list(Local(2).run(tasks.throw_unsendable, range(4)))
        with pytest.raises(ShardwrightError, match=r"^DemandingError: a\.tar: gone$"):
            list(Local(2).run(tasks.throw_demanding, range(4)))

    def test_a_message_that_cannot_be_pickled_is_an_error(self) -> None:
        with pytest.raises(Exception, match="pickle"):
            list(Local(2).run(tasks.say_unsendable, range(4)))

    def test_a_killed_worker_is_a_clear_error(self) -> None:
        with pytest.raises(
            ShardwrightError, match=r"a worker process was killed \(signal 9\).*fewer --workers"
        ):
            list(Local.of(4).run(tasks.die, range(4)))
        with pytest.raises(ShardwrightError, match=r"out; free memory, and run the same command"):
            list(Local(4).run(tasks.die, range(4)))

    def test_a_worker_that_is_gone_before_its_task_comes_is_a_clear_error(self) -> None:
        with pytest.raises(ShardwrightError, match=r"worker process ended \(exit code 7\)"):
            list(Local(2).run(tasks.leave, [b"x" * 3_000_000] * 4))

    def test_a_worker_that_dies_in_the_middle_of_a_message_is_a_clear_error(self) -> None:
        messages = Local(2).run(tasks.cut, range(2))
        pid = int(next(messages))
        wait_until(lambda: not is_alive(pid))
        with pytest.raises(ShardwrightError, match=r"worker process was killed \(signal 9\)"):
            next(messages)

    def test_closing_early_kills_the_workers(self) -> None:
        messages = Local(2).run(tasks.hang, range(4))
        pids = {next(messages), next(messages)}
        assert all(map(is_alive, pids))
        messages.close()
        assert not any(map(is_alive, pids))

    def test_an_error_in_the_caller_kills_the_workers(self) -> None:
        pids = []

        def interrupted() -> None:
            with closing(Local(2).run(tasks.hang, range(4))) as messages:
                pids.append(next(messages))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not is_alive(pids[0])

    def test_a_wait_for_workers_ends_when_a_signal_came(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pids: list[int] = []

        def check() -> None:
            if len(pids) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(interrupts, "check", check)
        with pytest.raises(KeyboardInterrupt):
            pids.extend(Local(2).run(tasks.hang, range(4)))
        assert not any(map(is_alive, pids))

    def test_a_caller_may_ignore_the_end_of_children(self) -> None:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            assert len(list(Local(2).run(tasks.who, range(5)))) == 5
            with pytest.raises(ShardwrightError, match="a worker process ended"):
                list(Local(4).run(tasks.die, range(4)))
        finally:
            signal.signal(signal.SIGCHLD, before)

    def test_a_thread_may_run_tasks(self) -> None:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(Local(2).run(tasks.who, range(5))))
        thread.start()
        thread.join()
        assert len(found) == 5


def test_cores_are_those_this_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0))
    assert Local.of(3) == Local(3)
    # Elsewhere: in this process one is the default, for the tests.
    code = "from shardwright.engine.local import *; assert Local.of(None) == Local(cores())"
    subprocess.run([sys.executable, "-c", code], check=True)


# Real processes: what a user's program is like.

THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
TORCH = "import torch; torch.rand(500, 500) @ torch.rand(500, 500)\n"
ALONE = ""


def script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT
    )


MARKED = """
MARK = True
from shardwright.engine.local import Local
from tests.tasks import marked
print(set(Local(2).run(marked, range(4))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("before", "forked"), [(ALONE, True), (THREAD, False), (TORCH, False)])
def test_only_a_process_with_a_single_thread_is_forked(before: str, forked: bool) -> None:
    done = script(before + MARKED)
    assert (done.stdout, done.stderr) == (f"{{{forked}}}\n", "")


ORPHANING = """
import sys
from shardwright.engine.local import Local
from tests import tasks
for pid in Local(2).run(getattr(tasks, sys.argv[1]), range(2)):
    print(pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills orphans for us")
@pytest.mark.parametrize("before", [ALONE, THREAD])
@pytest.mark.parametrize("task", ["spin", "hang_if"])
def test_workers_of_a_killed_parent_are_gone(before: str, task: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", before + ORPHANING, task],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills orphans for us")
@pytest.mark.parametrize("before", [ALONE, THREAD])
def test_workers_whose_parent_is_killed_as_they_start_are_gone(before: str) -> None:
    code = before + (
        "import os, signal\n"
        "from shardwright.engine import devices, local\n"
        "from tests.tasks import hang\n"
        "def known(process, pid, connection, errors):\n"
        "    print(pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "devices.Process.__init__ = known\n"
        "list(local.Local(2).run(hang, range(2)))\n"
    )
    done = script(code)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    wait_until(lambda: not is_alive(pid))


INTERRUPTED = """
import sys
from shardwright.engine.local import Local
from tests.tasks import hang
try:
    print("ready", flush=True)
    list(Local(2).run(hang, range(2)))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("before", [ALONE, THREAD])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_is_the_parents_to_handle(before: str, number: signal.Signals) -> None:
    """As Ctrl-C in a terminal is, also while workers start."""
    handle = f"import signal; signal.signal({int(number)}, signal.default_int_handler)\n"
    with subprocess.Popen(
        [sys.executable, "-c", before + handle + INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: len(children(process.pid)) > 0)
        os.killpg(process.pid, number)
        assert process.communicate(timeout=150) == ("interrupted\n", "")


UNGUARDED = """
import sys
import shardwright
print("started", flush=True)
summary = shardwright.pack(
    derived_dir={store!r}, output_dir={output!r}, shard_size=1, workers=3)
print(summary.written_samples)
"""


def as_file(code: str, folder: Path) -> list[str]:
    (folder / "script.py").write_text(code)
    return [sys.executable, str(folder / "script.py")]


def as_input(code: str, folder: Path) -> list[str]:
    (folder / "script.py").write_text(code)
    return ["sh", "-c", '"$0" - < "$1"', sys.executable, str(folder / "script.py")]


def as_argument(code: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", code]


def as_cell(code: str, folder: Path) -> list[str]:
    """As a notebook runs it: a text, in a namespace of its own."""
    cell = f"exec(compile({code!r}, '<cell>', 'exec'), {{'__name__': '__main__'}})"
    return [sys.executable, "-c", cell]


def without_input(code: str, folder: Path) -> list[str]:
    return ["sh", "-c", '"$0" -c "$1" <&-', sys.executable, code]


@pytest.mark.parametrize(
    ("how", "before"),
    list(product((as_file, as_input, as_argument, as_cell, without_input), (ALONE, THREAD))),
)
def test_a_program_without_a_main_guard_runs_once(
    how: Callable[[str, Path], list[str]], before: str, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "derived", records(6))
    code = before + UNGUARDED.format(store=str(store.root), output=str(tmp_path / "shards"))
    done = subprocess.run(
        how(code, tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == ("started\n6\n", "")


def test_a_fresh_worker_finds_what_its_parent_finds(tmp_path: Path) -> None:
    """Also a module on a path that the program has added, from the folder it has gone to."""
    (tmp_path / "modules with spaces").mkdir()
    (tmp_path / "modules with spaces" / "mine.py").write_text("from tests.tasks import where\n")
    (tmp_path / "beside.py").write_text(
        "def task(_):\n    import mine\n    yield from mine.where(_)\n"
    )
    done = script(
        THREAD
        + "import os, sys\n"
        + f"sys.path[1:1] = ['modules with spaces', {str(ROOT)!r}]\n"
        + f"os.chdir({str(tmp_path)!r})\n"
        + "from shardwright.engine.local import Local\n"
        + "import beside\n"
        + "print(set(Local(2).run(beside.task, range(4))))\n"
    )
    assert (done.stdout, done.stderr) == (f"{{{str(tmp_path)!r}}}\n", "")


def test_a_function_of_the_program_itself_is_refused_where_it_cannot_be_imported() -> None:
    done = script(
        THREAD
        + "from shardwright.engine.local import Local\n"
        + "def task(_):\n    yield 1\n"
        + "list(Local(2).run(task, range(4)))\n"
    )
    assert done.returncode == 1
    assert "AttributeError: Can't get attribute 'task' on <module '__main__'" in done.stderr


def test_flags_of_the_interpreter_are_handed_on() -> None:
    code = (
        THREAD
        + "import sys\n"
        + f"sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'src')!r}]\n"
        + "from shardwright.engine.local import Local\n"
        + "from tests.tasks import flags\n"
        + "print(set(Local(2).run(flags, range(4))) == {(1, 1)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONHOME": "/nowhere"},
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
