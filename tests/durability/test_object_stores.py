"""Builds and packs at object stores: faults at each request, kills, several runs at once.

Whatever happens, the same command ends in the bytes of an unbroken local run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Literal, get_args

import pytest

import shardwright
from shardwright.building.commits import Commit, DirectCommits, There
from shardwright.building.plan import Shard
from shardwright.cli.main import main
from shardwright.engine import local as local_engine
from shardwright.errors import LockedError, StorageError
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import PackSettings, Unfinished
from shardwright.shards.format.writer import names_of
from shardwright.storage import files, objects, remote, urls
from shardwright.storage.objects import ObjectStore
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Url
from tests.commands import children, is_alive, wait_until
from tests.derive.pictures import make_images
from tests.durability import builds, processes
from tests.durability.scenarios import small_store, twenty
from tests.durability.soak import SOAK, Tally, some, stride, times
from tests.flaky import Flaky, How, flaky
from tests.remote import assert_same, held, local, uploads
from tests.servers import new_bucket, running, use_s3

HOWS: tuple[How, ...] = get_args(How)
PART = 1 << 15  # bytes of a part of an upload, so that small shards have several
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
Name = Literal["build", "pack"]
NAMES: tuple[Name, ...] = get_args(Name)
Contents = dict[str, bytes]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's children"),
    pytest.mark.timeout(3600 if SOAK else 600),
]


@pytest.fixture(scope="module")
def server(moto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that takes small parts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("S3_UPLOAD_PART_MIN_SIZE", "1")
        with running("moto", tmp_path_factory.mktemp("moto")) as url:
            yield url


@pytest.fixture
def at(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Url]:
    """A new folder at that server."""
    use_s3(monkeypatch, server)
    yield new_bucket(server) / "shards"
    urls._store.cache_clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits long in this process, and shards are sent in parts."""
    monkeypatch.setenv("SHARDWRIGHT_TIMEOUT", "0.7")
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(objects, "TRIES", 3)
    monkeypatch.setattr(remote, "PART", PART)


def words(name: Name, folder: Path, count: int = 4, **options: object) -> list[str]:
    """Set up a small build or pack, and give its command without the output."""
    given = [w for n, v in options.items() for w in (f"--{n.replace('_', '-')}", str(v))]
    if name == "build":
        images = make_images(folder / "images", count, builds.SIZES[:1])
        recipe = builds.make_recipe(folder, "dinov3", "t5")
        found = ["build", str(images), "--recipe", str(recipe), "--encoders", "sketch"]
        return [*found, "--shard-size", "2", "--sha256", *given]
    store = small_store(folder / "derived", twenty(2 * count)[::2])
    return ["pack", "--derived-dir", str(store.root), "--shard-size", "2", "--sha256", *given]


def to(words: Sequence[str], output: Url | Path) -> list[str]:
    return [*words, "--output-dir", str(output)]


def unbroken(words: Sequence[str], folder: Path) -> Contents:
    """Give what a local run makes, on one device."""
    done = processes.run([*to(words, folder), *on(words)], Path.cwd(), 60)
    assert done.returncode == 0, done.stderr
    return local(folder)


def on(words: Sequence[str], count: int = 1) -> list[str]:
    if words[0] == "build":
        return ["--device", "cpu" if count == 1 else f"cpu:{count}"]
    return ["--workers", str(count)]


def again(words: Sequence[str]) -> list[str]:
    """Give the command that continues an interrupted one."""
    return [*words, "--resume"] if words[0] == "pack" else [*words]


def assert_ok(folder: Url) -> None:
    report = shardwright.verify(str(folder), read_data=True)
    assert report.checked
    assert not report.findings


def faults(requests: int, hows: Sequence[How], name: Name) -> Iterator[tuple[int, How]]:
    """Give each fault at each request; without soak each once, at one of a build or a pack."""
    for number, how in enumerate(hows):
        if SOAK:
            yield from ((at, how) for at in range(1, requests + 1, stride(20)))
        elif number % len(NAMES) == NAMES.index(name):
            yield 8 + (requests - 8) * number // len(hows), how


@pytest.fixture
def proxy(server: str, quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """A server in front of that one, which fails when it is told to."""
    with flaky(server) as found:
        use_s3(monkeypatch, found.url)
        yield found
        urls._store.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_one_fault_at_any_request_is_tried_again(
    name: Name, proxy: Flaky, server: str, folder: Path, tally: Tally
) -> None:
    command = [*(job := words(name, folder)), *on(job)]
    expected = unbroken(job, folder / "unbroken")
    assert main(to(command, new_bucket(server) / "shards")) == 0
    assert any("partNumber=2" in request for request in proxy.requests)
    told: Counter[str] = Counter()
    for at, how in faults(len(proxy.requests), HOWS, name):
        output = new_bucket(server) / "shards"
        proxy.fail(at, how)
        assert main(to(command, output)) == 0, (at, how)
        assert_same(output, expected)
        assert not uploads(output), (at, how)
        told[f"{how}_at_a_request_of_a_{name},_tried_again"] += 1
    tally(**told)


@pytest.mark.parametrize("name", NAMES)
def test_after_a_fault_that_stays_the_same_command_continues(
    name: Name, proxy: Flaky, server: str, folder: Path, tally: Tally
) -> None:
    command = [*(job := words(name, folder)), *on(job)]
    expected = unbroken(job, folder / "unbroken")
    assert main(to(command, new_bucket(server) / "shards")) == 0
    kinds: list[How] = ["503", "hang_after", "reset_after", "truncated"]
    told: Counter[str] = Counter()
    for at, how in faults(len(proxy.requests), kinds, name):
        output = new_bucket(server) / "shards"
        proxy.fail(at, how, times=10_000)
        error = error_of(to(command, output))
        proxy._faults.clear()
        if error is None:  # only requests failed that come after all is there
            assert_ok(output)
            told[f"{how}_after_the_end_of_a_{name}"] += 1
        else:
            assert str(error.path).startswith(str(output.parent)), (at, how)
            assert error.fix is not None, (at, how)
            told[f"{how}_from_a_request_of_a_{name}_on,_continued"] += 1
        code = main(to(command, output))
        if code and name == "pack":
            code = main(to(again(command), output))
        assert code == 0, (at, how)
        assert_same(output, expected)
    tally(**told)


def test_a_run_that_was_replaced_aborts_no_upload_of_the_other(at: Url, quick: None) -> None:
    first = begun(at)
    second = first.begun()
    storage, name = second.storage(SHARD, ""), names_of(SHARD.path)[-1]
    with storage.create(name) as file:
        file.put(bytes(2 * PART))
        first.abandon([SHARD])
        assert uploads(at) == [f"{at.key}/{name}"]
        second.abandon([SHARD])
        assert not uploads(at)


def error_of(words: Sequence[str]) -> StorageError | None:
    """Give the error with which a command ends, if it does."""
    try:
        _call(words)
    except StorageError as error:
        return error
    return None


def _call(words: Sequence[str]) -> None:
    """Call the function of a command, for its error."""
    options: dict[str, Any] = {"sha256": True, "shard_size": 2, "output_dir": words[-1]}
    if words[0] == "pack":
        shardwright.pack(derived_dir=words[2], workers=1, **options)
    else:
        shardwright.build(words[1], recipe=words[3], encoders="sketch", device="cpu", **options)


def start(words: Sequence[str], told: Path) -> BaseProcess:
    """Start a command in a process of its own, with the environment of now."""
    given = ([*words], str(told), dict(os.environ))
    process = processes._CONTEXT.Process(target=_process, args=given)
    process.start()
    return process


def _process(words: list[str], told: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    remote.PART = PART
    # So do its workers, which are fresh.
    line = "from shardwright.engine.local import work\n"
    assert line in local_engine._FRESH
    quick = f"from shardwright.storage import remote\nremote.PART = {PART}\n"
    local_engine._FRESH = local_engine._FRESH.replace(line, line + quick)
    processes._start(words, told)


def has_shards(process: BaseProcess, output: Url, count: int) -> bool:
    """Whether a process has begun and so many shards are there, or it has ended already."""
    there = [os.path.basename(name) for name, _ in output.walk()]
    begun = manifest.UNFINISHED_NAME in there
    done = len([name for name in there if name.endswith(".tar")])
    return not process.is_alive() or (begun and done >= count)


def offspring(process: BaseProcess) -> list[int]:
    assert process.pid is not None
    with suppress(FileNotFoundError, ProcessLookupError):
        return [pid for pid in children(process.pid) if is_alive(pid)]
    return []


@pytest.mark.parametrize("name", NAMES)
def test_kills_of_workers_and_drivers_lose_nothing(
    name: Name, at: Url, folder: Path, tally: Tally
) -> None:
    job = words(name, folder, 12 if SOAK else 8)
    expected, told, draw = unbroken(job, folder / "unbroken"), folder / "told", random.Random(3)
    command = to([*again(job), *on(job, 2)], at)
    drivers = workers = kept = 0
    while drivers + workers < times(2):
        process = start(command, told)
        wait_until(partial(has_shards, process, at, draw.randrange(6 if SOAK else 4)), 60)
        time.sleep(draw.uniform(0, 0.2))
        found = offspring(process)
        if name == "build" and found and workers < drivers:
            with suppress(ProcessLookupError):
                os.kill(draw.choice(found), signal.SIGKILL)
            workers += 1
        else:
            process.kill()
        process.join()
        wait_until(lambda left=found: not any(map(is_alive, left)))  # type: ignore[misc]
        kept += "finished before" in told.read_text()
        if process.exitcode == -signal.SIGKILL:
            drivers += 1
            continue
        assert process.exitcode == 0, told.read_text()
        assert_same(at, expected)
        RemotePlace(at).remove_all()
    process = start(command, told)
    process.join()
    assert process.exitcode == 0, told.read_text()
    kept += "finished before" in told.read_text()
    assert_same(at, expected)
    assert_ok(at)
    tally(kills_of_a_driver=drivers, kills_of_a_worker=workers, runs_that_found_shards=kept)


def test_commits_of_a_killed_run_are_used(
    at: Url, quick: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = [*(command := words("build", folder)), *on(command)]
    expected, publish = unbroken(command, folder / "unbroken"), RemotePlace.publish
    done: list[str] = []

    def publishing(storage: RemotePlace, name: str, condition: str | None = None) -> str:
        if len(done) == 5:  # the records and the index of the second shard are there
            raise _KilledError
        done.append(name)
        return publish(storage, name, condition)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RemotePlace, "publish", publishing)
        patched.setattr(RemotePlace, "discard", lambda *_: None)
        patched.setattr(DirectCommits, "abandon", lambda *_: None)
        with pytest.raises(_KilledError):
            _call(to(job, at))
    assert uploads(at) == [f"{at.key}/bucket_16x16/shard-000001.tar"]
    capsys.readouterr()
    assert main(to(job, at)) == 0
    assert "1 of 2 shards finished before; continuing" in capsys.readouterr().err
    assert_same(at, expected)
    assert uploads(at)  # somebody may be at work on it
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(remote, "IDLE", -60)  # it got no part for an hour
        assert main(to(job, at)) == 0
    assert not uploads(at)


class _KilledError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("number", "count"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_leaves_no_upload(
    name: Name, number: signal.Signals, count: int, at: Url, folder: Path
) -> None:
    job, told = words(name, folder), folder / "told"
    if name == "build":  # of so many parts that one is there for a while
        recipe = builds.make_recipe(folder, "dinov3", "t5")
        recipe.write_text(recipe.read_text().replace("tokens = 9", "tokens = 400"))
    process = start(to([*job, *on(job, count)], at), told)
    wait_until(lambda: f"{at.key}/bucket" in "".join(uploads(at)) or not process.is_alive(), 60)
    assert process.pid is not None
    with suppress(ProcessLookupError):  # it may have ended in the meantime
        os.kill(process.pid, number)
    process.join()
    if process.exitcode == 0:
        pytest.skip("it had ended")
    assert process.exitcode == CODES[number], told.read_text()
    last = told.read_text().splitlines()[-1]
    if name == "build":
        assert last.startswith("Interrupted; "), last
        assert last.endswith("run the same command to continue"), last
    else:
        assert last == "Interrupted; to continue, run the same pack with --resume"
    assert not uploads(at)
    expected = unbroken(job, folder / "unbroken")
    process = start(to([*again(job), *on(job, count)], at), told)
    process.join()
    assert process.exitcode == 0, told.read_text()
    assert_same(at, expected)


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_of_one_plan_at_once_make_one_set(
    name: Name, at: Url, folder: Path, tally: Tally
) -> None:
    job = words(name, folder)
    expected, draw = unbroken(job, folder / "unbroken"), random.Random(5)
    # Without soak both begin at once where they build, and one after the other where they pack.
    for each in range(10) if SOAK else [NAMES.index(name)]:
        output = at.parent / str(each)
        command = to([*again(job), *on(job, 2 if each % 2 else 1)], output)
        told = [folder / "told0", folder / "told1"]
        both = [start(command, told[0])]
        time.sleep(draw.uniform(0, 1.5) * (each % 3 > 0))
        both.append(start(command, told[1]))
        for process in both:
            process.join()
        codes = [process.exitcode for process in both]
        says = "\n".join(path.read_text() for path in told)
        # A pack that finds another one at work is refused, and a build goes on with the other's.
        assert 0 in codes, says
        assert {*codes} <= {0, 1, 11}, says
        assert "Traceback" not in says, says
        assert_same(output, expected)
        assert_ok(output)
        assert manifest.load_unfinished(output) is None
        assert not uploads(output)
        tally(pairs_of_runs_of_one_plan=1)


@pytest.mark.parametrize("name", NAMES)
def test_of_two_plans_at_once_one_is_refused(
    name: Name, at: Url, folder: Path, tally: Tally
) -> None:
    draw, told = random.Random(6), [folder / "told0", folder / "told1"]
    jobs = [words(name, folder), words(name, folder, limit=3)]
    expected = [unbroken(job, folder / f"unbroken{n}") for n, job in enumerate(jobs)]
    # Without soak both begin at once where they pack, and one after the other where they build.
    for each in range(10) if SOAK else [1 - NAMES.index(name)]:
        output = at.parent / str(each)
        both = []
        for job, path in zip(jobs, told, strict=True):
            both.append(start(to([*job, *on(job)], output), path))
            time.sleep(draw.uniform(0, 1) * (each % 2))
        for process in both:
            process.join()
        codes = [process.exitcode for process in both]
        says = [path.read_text() for path in told]
        assert sorted(codes, key=bool)[0] == 0, says
        winner = codes.index(0)
        assert codes[1 - winner] in (1, 2, 11), says
        assert "Traceback" not in says[1 - winner], says
        assert str(output) in says[1 - winner].splitlines()[-1], says
        assert_same(output, expected[winner])
        assert_ok(output)
        plans = {key.split("/")[2] for key in held(output) if key.startswith(".shardwright/build/")}
        assert len(plans) <= 1
        tally(pairs_of_runs_of_two_plans=1)


# A worker that was thought dead and goes on, at any step of the one in its place.


class Turns:
    """Lets each of some threads send requests only when it is its turn."""

    def __init__(self) -> None:
        self.thread = threading.local()  # which has a name if it takes turns
        self.left: dict[str, float] = {}
        self.waiting: set[str] = set()
        self.changed = Condition()

    def take(self) -> None:
        name: str | None = getattr(self.thread, "name", None)
        if name is None:
            return
        with self.changed:
            self.waiting.add(name)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.left[name] > 0)
            self.waiting.discard(name)
            self.left[name] -= 1

    def give(self, name: str, count: float, thread: Thread) -> None:
        """Let a thread send so many requests, and wait until it has, or has ended."""
        with self.changed:
            self.left[name] = count
            self.changed.notify_all()
        while thread.is_alive():
            with self.changed:
                if self.left[name] == 0 and name in self.waiting:
                    return
                self.changed.wait(0.01)


class Stepping:
    """A store whose requests take turns."""

    def __init__(self, store: ObjectStore, turns: Turns) -> None:
        self._store, self._turns = store, turns

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        call = getattr(self._store, name)
        if not callable(call):
            return call

        def taken(*given: object) -> Any:  # noqa: ANN401
            self._turns.take()
            return call(*given)

        return taken


SHARD = Shard(0, None, "16x16", "bucket_16x16/shard-000000.tar", array("Q", [0]))
PLAN = "plan"


@dataclass
class Worker:
    """Settles a shard of its own bytes."""

    commits: DirectCommits
    name: str
    there: There
    result: Commit | BaseException | None = None

    def settle(self, turns: Turns | None = None) -> None:
        commit, storage = Commit(plan=PLAN, number=0), self.commits.storage(SHARD, "")
        assert isinstance(storage, RemotePlace)
        for name in names_of(SHARD.path):
            with storage.create(name) as file:
                data = (self.name * 300 + name).encode()
                file.put(data)
                file.seal(len(data))
        if turns is not None:
            turns.thread.name = self.name
        try:
            self.result = self.commits.settle(SHARD, commit, storage, self.there)
        except (LockedError, StorageError) as error:
            self.result = error


def begun(at: Url) -> DirectCommits:
    settings = PackSettings(buckets=[], shuffle=False, seed=None, limit=None, shard_size=1)
    note = Unfinished(append=False, plan=PLAN, settings=settings, replaces=[], base=None, build={})
    manifest.save_unfinished(at, note)
    return DirectCommits(PLAN, at / ".shardwright/build" / PLAN, {None: at}).begun()


def states(at: Url, state: str) -> DirectCommits:
    """Leave what workers that have died may have left."""
    commits = begun(at)
    names = names_of(SHARD.path)
    for name in {"nothing": (), "records": names[:1], "files": names, "no commit": names}[state]:
        (at / name).write(b"of a dead worker")
    if state == "no commit":
        files.write(commits._path(SHARD), b"\xff of a dead worker")
    return commits


def reopened(commits: DirectCommits) -> There:
    return commits.reopen([SHARD], {}).get(SHARD.number, {})


def assert_consistent(commits: DirectCommits) -> None:
    """The commit is what is there, or that is found, and the next worker settles it."""
    if commits.found([SHARD]):
        return
    last = Worker(commits, "C", reopened(commits))
    last.settle()
    assert isinstance(last.result, Commit), last.result
    assert not commits.differing([SHARD], {0: last.result})


@pytest.mark.parametrize("state", ["nothing", "records", "files", "no commit"])
@pytest.mark.parametrize("part", [PART, 256], ids=["in one piece", "in parts"])
def test_a_worker_that_was_thought_dead_does_no_harm(
    state: str, part: int, server: str, quick: None, monkeypatch: pytest.MonkeyPatch, tally: Tally
) -> None:
    use_s3(monkeypatch, server)
    monkeypatch.setattr(remote, "PART", part)
    store = urls._store
    turns = Turns()
    monkeypatch.setattr(urls, "_store", lambda *given: Stepping(store(*given), turns))
    # The first stops after some requests, then the second, then the first goes on.
    orders = [(first, second) for first in range(18) for second in (*range(1, 18), 1000)]
    tried = 0
    for first, second in some(orders, 1, start=len(state) * part):
        commits = states(new_bucket(server) / "shards", state)
        there = reopened(commits)
        workers = [Worker(commits, name, there) for name in "AB"]
        threads = [Thread(target=worker.settle, args=(turns,)) for worker in workers]
        turns.left = dict.fromkeys("AB", 0)
        for thread in threads:
            thread.start()
        turns.give("A", first, threads[0])
        turns.give("B", second, threads[1])
        # What the manifest would list, if it were written now.
        finished = commits.found([SHARD]).get(SHARD.number)
        for name, thread in zip("AB", threads, strict=True):
            turns.give(name, float("inf"), thread)
            thread.join()
        if finished is not None:
            assert not commits.differing([SHARD], {0: finished}), (first, second)
        assert_consistent(commits)
        tried += 1
    tally(orders_of_two_workers=tried)
    store.cache_clear()


def test_a_worker_without_samples_removes_nothing_of_the_one_in_its_place(
    at: Url, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = states(at, "files")
    there = reopened(first)
    second = first.begun()
    worker = Worker(second, "B", reopened(second))
    worker.settle()
    assert isinstance(worker.result, Commit)
    monkeypatch.setattr(DirectCommits, "_require_driver", lambda _: None)  # it has looked before
    assert not first.settle(SHARD, Commit(plan=PLAN, number=0), None, there).etag
    assert not second.differing([SHARD], {0: worker.result})


@dataclass
class Driver:
    """Runs the one task of a plan, and says that its commit is final."""

    commits: DirectCommits
    name: str
    final: Commit | None = None

    def run(self, turns: Turns | None = None) -> None:
        if turns is not None:
            turns.thread.name = self.name
        with suppress(LockedError):
            commits = self.commits.begun()
            for _ in range(3):
                found = commits.found([SHARD])
                if not found:
                    worker = Worker(commits, self.name, reopened(commits))
                    worker.settle()
                    assert isinstance(worker.result, Commit | LockedError), worker.result
                    found = {0: worker.result} if isinstance(worker.result, Commit) else {}
                if found and not commits.differing([SHARD], found):
                    break
            else:
                return
            commits.finalize(found)
            self.final = found[0]


@pytest.mark.parametrize("state", ["nothing", "files", "no commit"])
def test_of_two_drivers_one_ends_and_nothing_that_is_final_changes(
    state: str, server: str, quick: None, monkeypatch: pytest.MonkeyPatch, tally: Tally
) -> None:
    """Each is stopped after some requests, as a process that is paused, and goes on later."""
    use_s3(monkeypatch, server)
    store = urls._store
    turns = Turns()
    monkeypatch.setattr(urls, "_store", lambda *given: Stepping(store(*given), turns))
    orders = [(first, second) for first in range(30) for second in (*range(1, 30), 1000)]
    tried = 0
    for first, second in some(orders, 1, start=len(state)):
        commits = states(new_bucket(server) / "shards", state)
        drivers = [Driver(commits, name) for name in "AB"]
        threads = [Thread(target=driver.run, args=(turns,)) for driver in drivers]
        turns.left = dict.fromkeys("AB", 0)
        for thread in threads:
            thread.start()
        turns.give("A", first, threads[0])
        turns.give("B", second, threads[1])
        for name, thread in zip("AB", threads, strict=True):
            turns.give(name, float("inf"), thread)
            thread.join()
        finals = [driver.final for driver in drivers if driver.final is not None]
        assert finals, (first, second)
        for final in finals:
            assert not commits.differing([SHARD], {0: final}), (first, second)
        tried += 1
    tally(orders_of_two_drivers=tried)
    store.cache_clear()
