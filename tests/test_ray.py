"""A Ray cluster of three nodes: everything arrives once, whoever dies, comes or goes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as Machines

from shardwright import InputMissingError, ShardwrightError, StorageError, UsageError, build
from shardwright.engine import actors
from shardwright.engine import ray as engine
from shardwright.engine.actors import Actors, Host, Share
from shardwright.engine.devices import Processes
from shardwright.engine.nodes import Node, Shared
from shardwright.engine.pool import Death, Ended, Seat
from shardwright.engine.ray import Cluster, Ray
from shardwright.storage.urls import Url
from shardwright.version import __version__
from tests import device_tasks, ray_tasks, tasks
from tests.commands import children, is_alive, wait_until
from tests.device_tasks import Faulty, Paced
from tests.durability.soak import SOAK, Tally, times
from tests.ray_machines import add, apart, joined, machines_of
from tests.ray_tasks import Deadly, Held, Twice

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("ray")
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # of IPv4, and the same in IPv6


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with machines_of("one", "two", "three") as machines:
        yield machines


@pytest.fixture(scope="module")
def warnings() -> list[str]:
    return []


@pytest.fixture(scope="module")
def cluster(machines: Machines, warnings: list[str]) -> Iterator[Cluster]:
    with Ray(machines.address).connect(warnings.append) as cluster:
        yield cluster


@pytest.fixture
def one(cluster: Cluster, warnings: list[str]) -> Cluster:
    """One worker, where more are not needed: each takes a second to start."""
    return Cluster(cluster.nodes, Share("cpu", most=1), warnings.append)


@pytest.fixture(autouse=True)
def _no_warnings_of_others(warnings: list[str]) -> None:
    warnings.clear()


class Dealt:
    """An ``instead`` that remembers its calls."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.deaths: list[Death] = []

    def __call__(self, task: int, death: Death) -> int:
        self.tasks.append(task)
        self.deaths.append(death)
        return task


def test_a_worker_on_each_node_does_its_part_and_tells_it_in_order(
    cluster: Cluster, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, str, int]] = []
    for message in cluster.run(Held(tmp_path / "go"), range(40)):
        seen.append(message)
        if len({node for _, _, node, _ in seen}) == 3:
            (tmp_path / "go").touch()
    assert sorted(task for what, task, *_ in seen if what == "done") == list(range(40))
    for node in ("one", "two", "three"):
        own = [(what, task) for what, task, where, _ in seen if where == node]
        assert own == [(what, task) for _, task in own[::2] for what in ("begun", "done")]


def test_a_worker_knows_its_device_its_cores_and_the_folder_of_the_driver(
    cluster: Cluster, one: Cluster
) -> None:
    assert cluster.names == ("cpu", "cpu", "cpu")
    assert cluster.cores_each == 1
    (found,) = one.run(ray_tasks.about, [None])
    assert found == ("cpu", os.getcwd(), "1", "1", "4", "")


def test_what_is_drawn_ahead_or_larger_than_a_pipe_arrives(one: Cluster) -> None:
    found = list(one.run(device_tasks.drawn_in_a_thread, range(21)))
    assert sorted(task for _, task in found) == list(range(21))
    content = [bytes([n]) * 1_000_000 for n in range(5)]
    assert sorted(one.run(device_tasks.large, content)) == [c * 2 for c in content]


def test_an_error_of_the_function_is_raised_here_with_its_type_and_traceback(
    one: Cluster,
) -> None:
    with pytest.raises(StorageError, match="shard 3: no") as caught:
        list(one.run(device_tasks.fail, range(1000)))
    assert "in fail\n" in str(caught.value.__cause__)
    assert "(on cpu of node " in str(caught.value)


def test_tasks_run_on_all_cores_and_their_messages_arrive_once(cluster: Cluster) -> None:
    words = ["one", "two", "three", "", "five"] * 20
    assert sorted(cluster.tasks.run(tasks.spell, words)) == sorted("".join(words))
    assert list(cluster.tasks.run(tasks.spell, [])) == []


# Deaths


def test_the_oldest_task_of_a_dead_worker_is_suspected(one: Cluster, tmp_path: Path) -> None:
    instead = Dealt()
    function = Faulty(tmp_path, device_tasks.killed, on=frozenset({5}), ahead=2)
    messages = one.run(function, range(20), instead)
    assert sorted(task for what, task in messages if what == "end") == list(range(20))
    assert instead.tasks == [5]
    (death,) = instead.deaths
    assert death.exit_code == -signal.SIGKILL
    assert death.device in {f"cpu of node {name}" for name in ("one", "two", "three")}
    how = "was killed (signal 9): most often memory runs out"
    fix = "use a smaller --batch-size or fewer devices"
    assert death.text == f"the worker on {death.device} {how}; {fix}"


def test_a_killed_actor_is_a_death_and_its_process_dies_with_it(
    one: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "_SETTLE", 1.0)
    instead = Dealt()
    ended: list[int] = []
    with closing(one.run(Held(tmp_path / "go"), range(6), instead)) as messages:
        _, first, node, process = next(messages)
        os.kill(parent(process), signal.SIGKILL)
        wait_until(lambda: not is_alive(process))
        (tmp_path / "go").touch()
        ended.extend(task for what, task, *_ in messages if what == "done")
    assert sorted(ended) == list(range(6))
    assert instead.tasks == [first]
    assert instead.deaths[0].what == f"the worker on cpu of node {node} ended: its Ray actor died"


def test_tasks_of_a_lost_node_run_elsewhere_and_none_is_suspected(
    machines: Machines, cluster: Cluster, tmp_path: Path, warnings: list[str]
) -> None:
    instead, function = Dealt(), Held(tmp_path / "go")
    ended: list[int] = []
    with joined(machines, "short") as node:
        for what, task, where, process in cluster.run(function, range(12), instead):
            if what == "done":
                ended.append(task)
            elif where == "short":
                machines.remove_node(node, allow_graceful=False)
                wait_until(lambda process=process: not is_alive(process))  # type: ignore[misc]
                function.go.touch()
    assert sorted(ended) == list(range(12))
    assert instead.tasks == []
    (warning,) = warnings
    assert warning.startswith("the worker on cpu of node short is lost (its node ")
    assert warning.endswith("); its tasks are run again")


@pytest.mark.skipif(not SOAK, reason="another test loses a node, and another repeats messages")
def test_messages_of_tasks_on_a_lost_node_do_not_come_twice(
    machines: Machines, cluster: Cluster, tmp_path: Path
) -> None:
    def lose() -> None:
        wait_until((tmp_path / "short.begun").exists, 60)
        machines.remove_node(node, allow_graceful=False)
        (tmp_path / "go").touch()

    with joined(machines, "short") as node:
        loser = threading.Thread(target=lose)
        loser.start()
        found = list(cluster.tasks.run(Twice(tmp_path / "go"), range(8)))
        loser.join()
    assert sorted(found) == [(task, what) for task in range(8) for what in ("first", "second")]


# Nodes that join


def test_work_waits_for_a_gpu_and_begins_when_a_node_with_one_joins(
    machines: Machines, cluster: Cluster, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "_QUIET", 0.5)
    with Ray(device="cuda", gpus_per_worker=0.5).connect(warnings.append) as gpus:
        nodes: list[Any] = []

        def warn(text: str) -> None:
            warnings.append(text)
            nodes.append(add(machines, "gpu", num_cpus=4, num_gpus=1))

        try:
            found = list(gpus.run(ray_tasks.about, range(4), warn=warn))
            assert warnings == ["waiting for a GPU: no node of the cluster has one"]
            assert found == [("cuda:0", os.getcwd(), "2", "2", "4", "0")] * 4
            assert gpus.names == ("cuda:0", "cuda:0")
            assert gpus.cores_each == 2
        finally:
            for node in nodes:
                machines.remove_node(node)


def test_a_node_with_another_version_is_refused_or_not_used(
    machines: Machines, cluster: Cluster, tmp_path: Path, warnings: list[str]
) -> None:
    other = tmp_path / "other" / "shardwright"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "version.py").write_text('__version__ = "0.0.9"')

    def warn(text: str) -> None:
        warnings.append(text)
        (tmp_path / "go").touch()

    given = {"env_vars": {"PYTHONPATH": str(other.parent)}}
    with Ray().connect(warn) as earlier, joined(machines, "old", **given):
        found = list(earlier.run(Held(tmp_path / "go"), range(6)))
        with pytest.raises(ShardwrightError) as caught, Ray().connect(warn):
            pass
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    text = (
        f"node old has shardwright 0.0.9 with Python {python}, the driver has shardwright "
        f"{__version__} with Python {python}; install the same versions on all nodes"
    )
    assert str(caught.value) == text
    assert warnings == [f"node old is not used: {text}"]
    assert "old" not in {node for _, _, node, _ in found}


@pytest.mark.skipif(not SOAK, reason="another test refuses a node with another version")
def test_a_node_that_gives_another_digest_is_refused(cluster: Cluster) -> None:
    with Ray().connect(print) as others:
        others.require_same("recipe", os.getcwd)
        with pytest.raises(ShardwrightError) as caught:
            others.require_same("recipe", ray_tasks.machine)
    name = str(caught.value).split()[1]
    assert str(caught.value) == (
        f"node {name} has another recipe ({name}) than the driver (driver); "
        "install the same versions of all packages on all nodes"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_folder_that_only_the_driver_sees_is_refused(
    machines: Machines, cluster: Cluster, tmp_path: Path
) -> None:
    """The node has a file system of its own there, as another machine has."""
    folder, inputs = tmp_path / "mine" / "shards", tmp_path / "mine" / "images"
    inputs.mkdir(parents=True)
    with Ray().connect(print) as before:
        before.require_shared(folder)
        before.require_readable([inputs])
    with apart(machines, "apart", inputs.parent):
        wait_until(lambda: "apart" in {n["NodeName"] for n in ray.nodes() if n["Alive"]}, 60)
        with Ray().connect(print) as others:
            with pytest.raises(ShardwrightError) as caught:
                others.require_shared(folder)
            with pytest.raises(InputMissingError) as missing:
                others.require_readable([inputs])
            others.require_shared(tmp_path)
    share = "use a folder on a shared file system, or the URL of an object store"
    what = "only the driver sees this folder, node apart does not"
    assert str(caught.value) == f"{folder}: {what}; {share}"
    assert str(missing.value) == f"{inputs}: is not on node apart; {share}"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list(tmp_path.joinpath("mine").iterdir()) == [inputs]


# Ends


def test_closing_early_ends_the_workers(
    cluster: Cluster, tmp_path: Path, warnings: list[str]
) -> None:
    two = Cluster(cluster.nodes, Share("cpu", most=2), warnings.append)
    with closing(two.run(Held(tmp_path / "never"), range(9))) as messages:
        processes = {next(messages)[3] for _ in range(2)}
        assert all(map(is_alive, processes))
    assert not any(map(is_alive, processes))


PROGRAM = """
import sys
from pathlib import Path
from shardwright.engine.ray import Ray
from shardwright.entry import entry
from tests.ray_machines import add, apart, joined, machines_of
from tests.ray_tasks import Held

@entry
def work():
    print("begun", flush=True)
    with Ray(sys.argv[1], "cpu:1").connect(print) as cluster:
        for message in cluster.run(Held(Path(sys.argv[2])), range(9)):
            print(message[3], flush=True)

try:
    work()
except KeyboardInterrupt as interrupt:
    sys.exit(getattr(interrupt, "exit_code", 130))
"""


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a group of its own, and end all that is left of the group."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def program(address: str, go: Path) -> list[str]:
    return [sys.executable, "-c", PROGRAM, address, str(go)]


ENDS: list[tuple[list[int], int | None]] = [
    ([signal.SIGTERM], 143),
    ([signal.SIGKILL], -signal.SIGKILL),
    ([signal.SIGINT], 130),
    ([signal.SIGINT, signal.SIGINT], None),
]


# The signals come in tests of a cluster of this machine, too.
@pytest.mark.parametrize(("numbers", "code"), ENDS if SOAK else ENDS[1:2])
def test_workers_end_with_their_driver_whatever_ends_it(
    machines: Machines, tmp_path: Path, numbers: list[int], code: int | None
) -> None:
    with started(program(machines.address, tmp_path / "never")) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begun\n"
        process = int(driver.stdout.readline())
        assert is_alive(process)
        for number in numbers:
            driver.send_signal(number)
        out, err = driver.communicate(timeout=50)
        assert driver.returncode in ([code] if code else [130, -signal.SIGINT])
        assert (out, err) == ("", "")
        if code in (130, 143):
            assert not is_alive(process)
        wait_until(lambda: not is_alive(process))


def test_a_cluster_of_this_machine_ends_with_its_driver(tmp_path: Path) -> None:
    """Also while it starts, where Ray has a handler of its own for SIGTERM."""
    for delay in [1.0, *(0.2 * n for n in range(times(1) - 1))]:
        with started(program("local", tmp_path / "never")) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "begun\n"
            time.sleep(delay)
            below = descendants(driver.pid)
            driver.send_signal(signal.SIGTERM)
            out, err = driver.communicate(timeout=150)
            assert (driver.returncode, out, err) == (143, "", "")
            wait_until(lambda below=below: not any(map(is_alive, below)))  # type: ignore[misc]


def test_a_cluster_of_this_machine_listens_only_there_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """A terminal sends it to all processes, also to those of Ray."""
    usual = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "TEST_NODE": "here"}
    with started(program("local", tmp_path / "never"), **usual) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begun\n"
        int(driver.stdout.readline())
        below = descendants(driver.pid)
        found = listening({driver.pid, *below})
        assert found
        assert found <= LOOPBACK
        os.killpg(driver.pid, signal.SIGINT)
        assert (*driver.communicate(timeout=150), driver.returncode) == ("", "", 130)
        wait_until(lambda: not any(map(is_alive, below)))


def test_workers_killed_at_random_moments_lose_nothing_and_repeat_nothing(
    cluster: Cluster, tally: Tally
) -> None:
    chance = random.Random(5)
    reported: list[int] = []
    kills = 0
    count = times(20)

    def instead(task: int, death: Death) -> int | None:
        return None if task in reported else task

    for process, task in cluster.run(Paced(ahead=2), range(count), instead):
        if task >= 0:
            reported.append(task)
        if chance.random() < 0.05 and kills < count // 10:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                kills += 1
    assert sorted(reported) == list(range(count))
    assert kills
    tally(workers_of_a_cluster_killed=kills)


# Without a cluster


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"device": "mps"},
            "--device mps cannot be used on a Ray cluster; give auto, cuda, cpu or cpu:N",
        ),
        ({"gpus_per_worker": 1.5}, "--gpus-per-worker must be 1 or less, or an integer, not 1.5"),
        ({"gpus_per_worker": 0}, "--gpus-per-worker must be more than 0"),
        ({"gpus_per_worker": float("inf")}, "--gpus-per-worker must be more than 0"),
        ({"gpus_per_worker": float("nan")}, "--gpus-per-worker must be more than 0"),
        (
            {"gpus_per_worker": 1, "device": "cpu:2"},
            "--gpus-per-worker does not go with --device cpu:2",
        ),
        (
            {"address": "ray://somewhere:10001"},
            "ray://somewhere:10001: Ray Client cannot be used; run this command on a node of the "
            "cluster, with --ray-address HOST:PORT or auto",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Ray(**given)
    assert str(caught.value) == text


def test_encoders_that_are_objects_are_refused_on_a_cluster(tmp_path: Path) -> None:
    given: Any = {"vae": object()}
    with pytest.raises(UsageError, match="encoders that are objects stay in this process"):
        build(tmp_path, output_dir=tmp_path / "shards", engine="ray", encoders=given)


@pytest.mark.parametrize(
    ("given", "gpus"),
    [({}, 0.5), ({"gpus_per_worker": 2}, 2), ({"device": "cpu"}, None)],
    ids=["recipe", "flag", "no GPU"],
)
def test_gpus_per_worker_are_those_of_the_flag_else_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], gpus: float | None
) -> None:
    asked: list[float | None] = []

    def connect(ray: Ray, warn: object) -> None:
        asked.append(ray.gpus_per_worker)
        raise UsageError("no cluster here")

    monkeypatch.setattr(Ray, "connect", connect)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('extends = "prx"\n[ray]\ngpus_per_worker = 0.5\n')
    given = {"engine": "ray", "device": "cuda", "recipe": recipe, "encoders": "sketch", **given}
    with pytest.raises(UsageError, match="no cluster here"):
        build(tmp_path, output_dir=tmp_path / "shards", **given)
    assert asked == [gpus]


@pytest.mark.parametrize(
    ("share", "node", "places", "cores"),
    [
        (Share("cpu"), (8, 0), 1, 8),
        (Share("cpu"), (0, 1), 0, 0),
        (Share("cpu", cpus=3), (8, 0), 2, 3),
        (Share("cpu", cpus=3), (2, 0), 1, 2),
        (Share("cuda:0", gpus=1), (8, 4), 4, 2),
        (Share("cuda:0", gpus=1), (2, 4), 4, 0),
        (Share("cuda:0", gpus=0.1), (20, 1), 10, 2),
        (Share("cuda:0", gpus=2), (8, 3), 1, 8),
        (Share("cuda:0", gpus=1), (8, 0), 0, 8),
    ],
)
def test_what_workers_get_of_a_node(
    share: Share, node: tuple[int, int], places: int, cores: int
) -> None:
    there = Node("id", "name", *node)
    assert share.places(there) == places
    assert not places or share.cores(there) == cores


@pytest.mark.parametrize("cores", [1, 2])
def test_a_task_whose_worker_died_is_run_once_more_and_its_messages_come_once(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with the worker, or in a process of it."""
    monkeypatch.setattr(engine, "Actors", lambda *_: Processes(("cpu", "cpu")))
    monkeypatch.setenv("SHARDWRIGHT_CORES", str(cores))
    cluster: Any = Cluster(None, None, print)  # type: ignore[arg-type]
    found = list(cluster.tasks.run(Deadly(tmp_path, on=3, times=1), range(6)))
    assert sorted(found) == [(task, what) for task in range(6) for what in ("first", "second")]
    with pytest.raises(ShardwrightError, match=r"^the worker on cpu (was killed|ended)"):
        list(cluster.tasks.run(Deadly(tmp_path, on=3, times=9), range(6)))
    assert len(list(tmp_path.iterdir())) >= 3  # the oldest one may be another
    with pytest.raises(StorageError, match="shard 3: no"):
        list(cluster.tasks.run(tasks.fail, range(1000)))


def test_an_actor_that_died_is_forgotten_when_its_worker_is_of_no_more_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actors, "living", list)
    nodes: Any = SimpleNamespace(asked={})
    crew = Actors(nodes, Share("cpu"), print)
    died, stopped = Seat("cpu", "one"), Seat("cpu", "two")
    for place in (died, stopped):
        crew.places[place] = Node("id", place.name, 1, 0)
        crew.settling[place] = 0.0, Ended(None, ["its Ray actor died"])
    crew.stop(stopped)
    assert [place for place, *_ in crew.receive()] == [died]


def test_a_worker_that_has_ended_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of another process."""
    host = Host(1, os.getcwd())
    host.receive()
    host.end()
    while not isinstance(host.receive()[-1], Ended):
        pass
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: signals.append(pid))
    host.end()
    assert signals == []


def test_a_file_that_tries_a_folder_is_hidden_from_loaders(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    assert Shared.of(shards).file.parent == tmp_path
    (shards / ".shardwright").mkdir(parents=True)
    url = Url("s3://bucket/shards")
    for folder in (shards, url):
        assert Shared.of(folder).file.parent == folder / ".shardwright"


def test_ray_is_imported_only_when_it_is_used() -> None:
    code = "import sys, shardwright.engine.ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def parent(process: int) -> int:
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def descendants(process: int) -> set[int]:
    found = set(children(process))
    return found.union(*map(descendants, found))


def listening(processes: set[int]) -> set[str]:
    """Give the addresses at which processes listen, as the kernel writes them."""
    sockets = set()
    for process in processes:
        with suppress(FileNotFoundError):  # it has ended
            for fd in Path(f"/proc/{process}/fd").iterdir():
                with suppress(FileNotFoundError):
                    sockets.add(os.readlink(fd))
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listen = "0A"
    return {
        line[1].partition(":")[0]
        for line in lines
        if line[3] == listen and f"socket:[{line[9]}]" in sockets
    }
