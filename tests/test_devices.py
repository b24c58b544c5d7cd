"""Workers on devices: everything arrives once, whoever dies; and no worker outlives its work."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count, takewhile
from pathlib import Path

import pytest

from shardwright import ShardwrightError, StorageError, interrupts
from shardwright.engine import DeviceLostError
from shardwright.engine.devices import Death, Devices, Processes
from shardwright.engine.local import cores
from shardwright.engine.pool import run_on
from tests import device_tasks
from tests.commands import children, is_alive, wait_until
from tests.device_tasks import DeadAtStart, Faulty, Paced, Talking, Unloadable

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[1]
TWO = Devices(("first", "second"))
THREE = Devices(("first", "second", "third"))
MEMORY = "use a smaller --batch-size or fewer devices"


@pytest.fixture(autouse=True)
def _no_children_stay() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) == before


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where workers count what they have done."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


class Dealt:
    """An ``instead`` that remembers its calls, and changes the task, or drops it."""

    def __init__(self, change: Callable[[int], int | None] = lambda task: task) -> None:
        self.change = change
        self.tasks: list[int] = []
        self.deaths: list[Death] = []

    def __call__(self, task: int, death: Death) -> int | None:
        self.tasks.append(task)
        self.deaths.append(death)
        return self.change(task)


def ends(messages: Iterator[tuple[str, int]]) -> list[int]:
    return [task for kind, task in messages if kind == "end"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_everything_that_a_function_says_arrives(count: int) -> None:
    words = ["one", "two", "three", "", "five", "six", "seven"] * 5
    found: list[str] = list(Devices(THREE.names[:count]).run(device_tasks.spell, words))
    assert sorted(found) == sorted("".join(words))


def test_one_device_is_this_process_and_each_of_several_is_another() -> None:
    assert set(Devices(("cuda:3",)).run(device_tasks.who, range(3))) == {("cuda:3", os.getpid())}
    with closing(THREE.run(device_tasks.hang, range(3))) as pids:
        others = {next(pids) for _ in range(3)}
    assert len(others - {os.getpid()}) == 3


def test_without_a_task_no_worker_is_started_and_one_task_has_a_worker() -> None:
    assert list(TWO.run(device_tasks.who, [])) == []
    ((device, process),) = TWO.run(device_tasks.who, [None])
    assert device == "first"
    assert process != os.getpid()


def test_no_more_workers_are_started_than_there_are_tasks() -> None:
    before = len(children(os.getpid()))
    with closing(Devices(("x",) * 8).run(device_tasks.hang, range(2))) as pids:
        next(pids)
        assert len(children(os.getpid())) == before + 2


def test_tasks_are_taken_only_when_a_worker_draws() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    with closing(TWO.run(device_tasks.hang, numbers())) as messages:
        next(messages)
        next(messages)
        assert taken == [0, 1]


def test_a_task_may_be_anything_also_none() -> None:
    assert len(list(TWO.run(device_tasks.who, [None] * 5))) == 5


def test_messages_and_tasks_larger_than_a_pipe_arrive_complete() -> None:
    tasks = [bytes([n]) * 1_000_000 for n in range(5)]
    assert sorted(TWO.run(device_tasks.large, tasks)) == [task * 2 for task in tasks]


@pytest.mark.parametrize("count", [2, 3, 4, 21])
def test_a_task_that_ends_only_after_the_next_draw_is_no_deadlock(count: int) -> None:
    found = list(THREE.run(device_tasks.drawn_in_a_thread, range(count)))
    assert sorted(task for _, task in found) == list(range(count))


def test_messages_flow_while_another_thread_waits_for_a_task(marks: Path) -> None:
    seen = 0
    for seen, message in enumerate(TWO.run(Talking(marks), range(2)), 1):
        assert message == "still here"
        if seen == 20:
            (marks / "go").touch()
    assert seen >= 20


def test_a_worker_that_still_loads_does_not_delay_the_end() -> None:
    found = list(Devices(("quick", "slow")).run(device_tasks.slow_start, range(5)))
    assert found == ["quick"] * 5


@pytest.mark.parametrize("function", ["too_few", "too_many", "too_early"])
def test_a_function_that_does_not_keep_count_of_its_tasks_is_an_error(function: str) -> None:
    with pytest.raises(RuntimeError, match="yield DONE once for each"):
        list(TWO.run(getattr(device_tasks, function), range(6)))


# Errors


@pytest.mark.parametrize("devices", [Devices(("first",)), TWO])
def test_an_error_in_a_function_is_raised_here_and_ends_the_others(devices: Devices) -> None:
    seen: list[int] = []
    with pytest.raises(StorageError, match="shard 3: no"):
        seen.extend(devices.run(device_tasks.fail, range(10_000)))
    assert 3 in seen
    assert len(seen) < 10_000


@pytest.mark.parametrize("kind", [StorageError, EOFError, OSError, MemoryError])
def test_an_error_keeps_its_type_its_text_and_its_traceback(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="is broken") as caught:
        list(TWO.run(device_tasks.throw, [kind("is broken")] * 2, instead=lambda *_: None))
    assert "in throw\n    raise error" in str(caught.value.__cause__)


def test_a_message_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises(Exception, match="pickle"):
        list(TWO.run(device_tasks.say_unsendable, range(4)))


# Deaths


@pytest.mark.parametrize("ahead", [0, 2])
def test_tasks_of_a_killed_worker_are_run_again(marks: Path, ahead: int) -> None:
    function = Faulty(marks, device_tasks.killed, on=frozenset({5}), ahead=ahead)
    instead = Dealt()
    assert sorted(ends(TWO.run(function, range(20), instead))) == list(range(20))
    assert instead.tasks == [5]
    assert [death.exit_code for death in instead.deaths] == [-signal.SIGKILL]
    assert instead.deaths[0].device in TWO.names


def test_instead_gives_another_task_and_others_come_back_unchanged(marks: Path) -> None:
    function = Faulty(marks, device_tasks.killed, on=frozenset({5}), times=99, ahead=2)
    instead = Dealt(lambda task: task + 1000)
    expected = sorted({*range(20), 1005} - {5})
    assert sorted(ends(TWO.run(function, range(20), instead))) == expected
    assert instead.tasks == [5]


def test_instead_may_drop_a_task(marks: Path) -> None:
    function = Faulty(marks, device_tasks.killed, on=frozenset({0, 1}), times=99)
    instead = Dealt(lambda _: None)
    assert sorted(ends(TWO.run(function, range(6), instead))) == [2, 3, 4, 5]
    assert sorted(instead.tasks) == [0, 1]


def test_all_tasks_may_be_dropped(marks: Path) -> None:
    function = Faulty(marks, device_tasks.killed, on=frozenset(range(4)), times=99)
    instead = Dealt(lambda _: None)
    assert ends(TWO.run(function, range(4), instead)) == []
    assert sorted(instead.tasks) == [0, 1, 2, 3]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("times", [1, 2])
def test_the_last_task_may_kill_its_worker_when_all_others_have_ended(
    marks: Path, ahead: int, times: int
) -> None:
    function = Faulty(marks, device_tasks.killed, frozenset({7}), times, ahead, seconds=0.2)
    instead = Dealt()
    assert sorted(ends(THREE.run(function, range(8), instead))) == list(range(8))
    assert instead.tasks == [7] * times


def test_a_death_takes_back_tasks_after_every_worker_was_told_the_end(marks: Path) -> None:
    """Each has drawn all that it may, so the two that come back need a fresh worker."""
    function = Faulty(marks, device_tasks.killed, frozenset({0, 1}), ahead=9, seconds=0.5)
    instead = Dealt()
    assert sorted(ends(TWO.run(function, range(6), instead))) == list(range(6))
    assert sorted(instead.tasks) == [0, 1]


def test_a_task_may_kill_two_workers_in_a_row(marks: Path) -> None:
    function = Faulty(marks, device_tasks.exits, on=frozenset({2}), times=4, ahead=1)
    instead = Dealt()
    assert sorted(ends(TWO.run(function, range(10), instead))) == list(range(10))
    assert instead.tasks == [2] * 4


def test_what_a_worker_has_said_arrives_before_its_death(marks: Path) -> None:
    function = Faulty(marks, device_tasks.killed, on=frozenset(range(8)))
    seen: list[tuple[str, int]] = []

    def instead(task: int, death: Death) -> int:
        seen.append(("death", task))
        return task

    seen.extend(TWO.run(function, range(8), instead))
    for task in range(8):
        kinds = [kind for kind, of in seen if of == task]
        assert kinds == ["start", "death", "start", "end"]


@pytest.mark.parametrize(
    ("do", "code", "text"),
    [
        (
            device_tasks.killed,
            -9,
            f"the worker on first was killed (signal 9): most often memory runs out; {MEMORY}",
        ),
        (
            device_tasks.crashes,
            -11,
            "the worker on first crashed (signal 11, Segmentation fault); "
            f"if memory ran out, {MEMORY}",
        ),
        (
            device_tasks.exits,
            7,
            f"the worker on first ended (exit code 7); if memory ran out, {MEMORY}",
        ),
    ],
)
def test_a_death_names_the_worker_and_the_fix(
    marks: Path, do: Callable[[str, Path], None], code: int, text: str
) -> None:
    devices = Devices(("first", "first"))
    function = Faulty(marks, do, on=frozenset({1}))
    with pytest.raises(ShardwrightError) as caught:
        list(devices.run(function, range(4)))
    assert str(caught.value) == text
    instead = Dealt(lambda _: None)
    function = Faulty(marks, do, on=frozenset({2}))
    list(devices.run(function, range(4), instead))
    assert [(death.device, death.exit_code, death.text) for death in instead.deaths] == [
        ("first", code, text)
    ]


def test_a_program_that_a_dead_worker_had_started_does_not_hide_its_death() -> None:
    pids: list[int] = []
    with pytest.raises(ShardwrightError, match=r"ended \(exit code 7\)"):
        pids.extend(TWO.run(device_tasks.programs, ["go", "die", "go"]))
    os.kill(pids[0], signal.SIGKILL)


def test_a_worker_may_die_in_the_middle_of_a_message() -> None:
    sizes = []
    instead = Dealt(lambda task: task + 10)
    for pid, content in TWO.run(device_tasks.cut, range(4), instead):
        sizes.append(len(content))
        if content == b"cut":
            wait_until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
    assert sorted(sizes) == [3, *[3_000_000] * 4]
    assert instead.tasks == [0]


def test_a_caller_may_ignore_the_end_of_children(marks: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        function = Faulty(marks, device_tasks.killed, on=frozenset({2}))
        instead = Dealt()
        assert sorted(ends(TWO.run(function, range(5), instead))) == list(range(5))
        assert [death.exit_code for death in instead.deaths] == [None]
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_before_its_first_task_is_started_again(marks: Path, times: int) -> None:
    instead = Dealt()
    found = TWO.run(DeadAtStart(marks, "first", times), range(60), instead)
    assert sorted(found) == list(range(60))
    assert len(list(marks.iterdir())) == times
    assert instead.tasks == []


def test_a_worker_that_always_dies_before_its_first_task_is_an_error(marks: Path) -> None:
    with pytest.raises(ShardwrightError) as caught:
        list(TWO.run(DeadAtStart(marks, "second", 99), range(999), Dealt()))
    what = "the worker on second ended (exit code 7) before its first task"
    assert str(caught.value) == f"{what}; if memory ran out, {MEMORY}"
    assert len(list(marks.iterdir())) == 3


def test_a_worker_that_cannot_load_its_function_says_why() -> None:
    with pytest.raises(ShardwrightError) as caught:
        list(Devices(("cpu", "cpu")).run(Unloadable(), range(9), Dealt()))
    assert caught.value.what == (
        "the worker on cpu ended (exit code 3) before its first task: no kernel image is available"
    )


def test_workers_killed_at_random_moments_lose_nothing_and_repeat_nothing() -> None:
    """What was reported is known here when ``instead`` is asked; that task is then dropped."""
    chance = random.Random(5)
    workers: set[int] = set()
    over = threading.Event()
    kills: list[int] = []

    def kill() -> None:
        while not over.wait(chance.uniform(0, 0.12)):
            pids = sorted(workers & set(children(os.getpid())))
            if pids and len(kills) < 25:
                kills.append(chance.choice(pids))
                with suppress(ProcessLookupError):
                    os.kill(kills[-1], signal.SIGKILL)

    reported: list[int] = []
    dropped = []

    def instead(task: int, death: Death) -> int | None:
        assert death.exit_code == -signal.SIGKILL
        if task in reported:
            return None
        if chance.random() < 0.2:
            dropped.append(task)
            return None
        return task

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for pid, task in THREE.run(Paced(ahead=2), range(400), instead):
            workers.add(pid)
            if task >= 0:
                reported.append(task)
    finally:
        over.set()
        killer.join()
    assert sorted(reported + dropped) == list(range(400))
    assert kills


def test_a_worker_may_die_when_nothing_is_left_for_it() -> None:
    assert sorted(TWO.run(device_tasks.dies_at_the_end, range(6))) == list(range(6))


# A crew that may grow, as on a cluster


class Growing(Processes):
    grows = True


def test_a_place_of_a_cluster_where_no_worker_starts_is_left_out(marks: Path) -> None:
    warnings: list[str] = []
    function = DeadAtStart(marks, "second", 3)
    tasks = takewhile(lambda task: task < 60 or not warnings, count())
    found = list(run_on(Growing(TWO.names), function, tasks, Dealt(), warnings.append))
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= 60
    what = "the worker on second ended (exit code 7) before its first task"
    assert warnings == [f"{what}; going on without it"]
    assert len(list(marks.iterdir())) == 3


def test_a_cluster_where_no_worker_starts_anywhere_is_an_error(marks: Path) -> None:
    warnings: list[str] = []
    function = DeadAtStart(marks, "first", 99)
    with pytest.raises(ShardwrightError) as caught:
        list(run_on(Growing(("first", "first")), function, range(9), Dealt(), warnings.append))
    what = "the worker on first ended (exit code 7) before its first task"
    assert str(caught.value) == f"{what}; if memory ran out, {MEMORY}"
    assert warnings == [f"{what}; going on without it"]


def test_an_error_on_a_cluster_says_where() -> None:
    error = StorageError("is broken", path="shard", fix="replace it")
    crew = Growing(("cpu of node two",))
    with pytest.raises(StorageError) as caught:
        list(run_on(crew, device_tasks.throw, [error], None, None))
    assert str(caught.value) == "shard: is broken (on cpu of node two); replace it"
    assert (caught.value.path, caught.value.fix) == ("shard", "replace it")
    assert "in throw\n" in str(caught.value.__cause__)


# Devices that are gone


def test_others_do_the_tasks_of_a_device_that_is_gone(marks: Path) -> None:
    everything = frozenset(range(12))
    function = Faulty(marks, device_tasks.loses_first, everything, times=99, ahead=2)
    warnings: list[str] = []
    instead = Dealt()
    assert sorted(ends(TWO.run(function, range(12), instead, warnings.append))) == list(range(12))
    assert warnings == ["first is gone (fell off the bus); going on with 1 other device"]
    assert instead.tasks == []


def test_a_device_that_is_lost_with_the_last_task_leaves_it_to_another(marks: Path) -> None:
    function = Faulty(marks, device_tasks.loses, on=frozenset({5}), ahead=2, seconds=0.1)
    warnings: list[str] = []
    assert sorted(ends(THREE.run(function, range(6), warn=warnings.append))) == list(range(6))
    assert [text.partition(" ")[2] for text in warnings] == [
        "is gone (fell off the bus); going on with 2 other devices"
    ]


def test_the_loss_of_all_devices_is_an_error(marks: Path) -> None:
    function = Faulty(marks, device_tasks.loses, on=frozenset(range(12)), times=99)
    warnings: list[str] = []
    found: list[int] = []
    with pytest.raises(ShardwrightError) as caught:
        found.extend(ends(TWO.run(function, range(12), warn=warnings.append)))
    last = "second" if "first" in warnings[0] else "first"
    assert str(caught.value) == (
        f"{last} is gone (fell off the bus), and no other device is left for its work; "
        "check the devices of this machine, then run the same command again"
    )
    assert len(warnings) == 1


def test_the_loss_of_the_only_device_is_an_error(marks: Path) -> None:
    function = Faulty(marks, device_tasks.loses, on=frozenset({1}))
    with pytest.raises(ShardwrightError, match=r"^cuda:0 is gone") as caught:
        list(Devices(("cuda:0",)).run(function, range(2)))
    assert isinstance(caught.value.__cause__, DeviceLostError)


# Ends


def test_closing_early_kills_the_workers() -> None:
    messages = TWO.run(device_tasks.hang, range(4))
    pids = {next(messages), next(messages)}
    assert all(map(is_alive, pids))
    messages.close()
    assert not any(map(is_alive, pids))


def test_processes_of_workers_die_with_them() -> None:
    with closing(TWO.run(device_tasks.parents, range(4))) as messages:
        pids = {next(messages) for _ in range(4)}
        assert len(pids) == 4
        assert all(map(is_alive, pids))
    wait_until(lambda: not any(map(is_alive, pids)))


def test_closing_early_closes_the_function_that_runs_here() -> None:
    closed = []

    def function(device: str, tasks: Iterator[int]) -> Iterator[int]:
        try:
            yield from tasks
        finally:
            closed.append(device)

    messages = Devices(("cpu",)).run(function, range(4))
    assert next(messages) == 0
    messages.close()
    assert closed == ["cpu"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_wait_for_workers_ends_when_a_signal_came(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def check() -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "check", check)
    devices = Devices(("x",) * count)
    function = device_tasks.who if count == 1 else device_tasks.hang
    with pytest.raises(KeyboardInterrupt):
        seen.extend(devices.run(function, range(4)))
    assert len(seen) == 2


def test_cores_are_shared_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Devices(("cuda:0",)).cores_each == cores()
    assert Devices(("cuda:0",) * (cores() + 1)).cores_each == 1
    for name in device_tasks.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    devices = Devices(("cpu", "cpu", "cuda:0"))
    with closing(devices.run(device_tasks.environment, range(3))) as messages:
        found = [next(messages) for _ in range(3)]
    each = str(max(1, cores() // 2))
    assert sorted(found) == [("cpu", each, each, "3")] * 2 + [("cuda:0", "", "", "3")]


# Real processes: what a user's program is like.

PROGRAM = """
import sys
from shardwright.engine.devices import Devices
from tests import device_tasks
print("ready", flush=True)
try:
    for message in Devices(("first", "second")).run(getattr(device_tasks, sys.argv[1]), range(2)):
        print(message, flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def program(function: str, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + PROGRAM, function],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills orphans for us")
@pytest.mark.parametrize(("function", "count"), [("hang", 2), ("spin", 2), ("parents", 4)])
def test_workers_of_a_killed_parent_are_gone(function: str, count: int) -> None:
    with program(function) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        pids = [int(parent.stdout.readline()) for _ in range(count)]
        assert all(map(is_alive, pids))
        parent.kill()
        parent.wait()
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_is_the_parents_to_handle(number: signal.Signals) -> None:
    """As Ctrl-C in a terminal is, also while workers start."""
    handle = f"import signal; signal.signal({int(number)}, signal.default_int_handler)\n"
    with program("spin", handle) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: len(children(process.pid)) > 0)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=150)
    assert (out.splitlines()[-1], err) == ("interrupted", "")


def test_a_signal_waits_for_a_check() -> None:
    """With the handlers that every command has."""
    caught = "from shardwright.interrupts import caught; ours = caught(); ours.__enter__()\n"
    with program("hang", caught) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        pids = [int(process.stdout.readline()) for _ in range(2)]
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=150)
    assert (out, err) == ("interrupted\n", "")
    assert not any(map(is_alive, pids))


def test_what_a_worker_prints_is_no_output_of_the_program() -> None:
    with program("chatter") as process:
        out, err = process.communicate(timeout=150)
    assert out == "ready\n"
    assert {line[:6] for line in err.splitlines()} == {"out of", "err of"}


def test_a_program_without_standard_input_may_have_workers() -> None:
    command = ["sh", "-c", '"$0" -c "$1" who <&-', sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=ROOT)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 3
