"""Real pack processes that are interrupted, terminated, killed, or meet one another."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright import pack
from tests import commands
from tests.durability.soak import SOAK
from tests.stores import Store, make_store, records
from tests.tars import digests, listing, shards

SHARDS = 300
INTERRUPTED = "Interrupted; to continue, run the same pack with --resume"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that takes a while, as every sample gets a shard of its own."""
    root = tmp_path_factory.mktemp("many") / "derived"
    return make_store(root, records(SHARDS), share=("dinov3", "t5"))


@pytest.fixture(scope="module")
def unbroken(many: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an unbroken run leaves."""
    output = tmp_path_factory.mktemp("unbroken") / "shards"
    pack(derived_dir=many.root, output_dir=output, shard_size=1)
    return digests(output)


def flags(store: Store, output: Path, *more: str) -> tuple[str | Path, ...]:
    return ("pack", "--derived-dir", store.root, "--output-dir", output, "--shard-size", "1", *more)


def started(store: Store, output: Path, written: int, *more: str) -> subprocess.Popen[str]:
    """Start to pack, and come back when some shards are written."""
    process = commands.start(*flags(store, output, *more))
    assert process.stderr is not None
    while written:
        line = process.stderr.readline()
        assert line, "it ended too soon"
        written -= line.startswith("write: ")
    return process


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[str]]]:
    """Whatever happens, no process stays behind."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def assert_only_whole_shards(output: Path, unbroken: dict[str, str]) -> None:
    assert not [name for name in listing(output) if name.endswith(".tmp")]
    found = digests(output)
    names = [str(path.relative_to(output)) for path in shards(output)]
    assert 0 < len(names) < SHARDS
    assert {name: found[name] for name in names} == {name: unbroken[name] for name in names}


ENDS = [
    *((signal.SIGINT, 130, "1"), (signal.SIGTERM, 143, "2"), (signal.SIGHUP, 129, "1")),
    *((signal.SIGINT, 130, "2"), (signal.SIGTERM, 143, "1"), (signal.SIGHUP, 129, "2")),
]
AGAIN = [("--overwrite", "1"), ("--resume", "2"), ("--overwrite", "2"), ("--resume", "1")]


@pytest.mark.parametrize(("number", "code", "workers"), ENDS if SOAK else ENDS[:3])
def test_a_signal_ends_the_run_without_half_a_shard(
    number: signal.Signals,
    code: int,
    workers: str,
    many: Store,
    output: Path,
    unbroken: dict[str, str],
    ended: list[subprocess.Popen[str]],
) -> None:
    process = started(many, output, 3, "--workers", workers)
    ended.append(process)
    children = commands.children(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=150)
    assert process.returncode == code
    assert out == ""
    assert err.endswith(f"{INTERRUPTED}\n")
    assert "Traceback" not in err
    assert not any(map(commands.is_alive, children))
    assert_only_whole_shards(output, unbroken)


@pytest.mark.parametrize("workers", ["1", "2"] if SOAK else ["2"])
def test_a_lost_terminal_ends_the_run_as_a_signal_does(
    workers: str,
    many: Store,
    output: Path,
    unbroken: dict[str, str],
    ended: list[subprocess.Popen[str]],
) -> None:
    """As when ssh breaks off: all processes get SIGHUP, and nothing can be written any more."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*commands.COMMAND, *map(str, flags(many, output, "--workers", workers))],
        stdin=theirs,
        stderr=theirs,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    ended.append(process)
    os.close(theirs)
    commands.wait_until(lambda: len(shards(output)) > 2)
    os.close(ours)
    assert process.wait(100) == 129
    assert_only_whole_shards(output, unbroken)
    assert commands.run(*flags(many, output, "--resume")).returncode == 0
    assert digests(output) == unbroken


def test_nohup_keeps_a_run_going(
    many: Store, output: Path, unbroken: dict[str, str], ended: list[subprocess.Popen[str]]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(many, output, 3)
    finally:
        signal.signal(signal.SIGHUP, before)
    ended.append(process)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=150)
    assert process.returncode == 0
    assert digests(output) == unbroken


@pytest.mark.parametrize("given", ["--overwrite", "--append"])
def test_an_interruption_says_how_to_go_on_and_so_it_does(
    given: str,
    many: Store,
    output: Path,
    unbroken: dict[str, str],
    ended: list[subprocess.Popen[str]],
) -> None:
    process = started(many, output, 3, given)
    ended.append(process)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=150)[1].endswith(f"{INTERRUPTED} instead of {given}\n")
    assert commands.run(*flags(many, output, "--resume")).returncode == 0
    found = digests(output)
    assert {name: found[name] for name in unbroken if name.endswith(".tar")} == {
        name: digest for name, digest in unbroken.items() if name.endswith(".tar")
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_whole_group_ends_it_as_well(
    number: signal.Signals, code: int, many: Store, output: Path, unbroken: dict[str, str]
) -> None:
    """As Ctrl-C in a terminal does, and a service manager's stop."""
    with subprocess.Popen(
        [*commands.COMMAND, *map(str, flags(many, output, "--workers", "2"))],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("write: "):
                break
        os.killpg(process.pid, number)
        assert process.stderr.read().endswith(f"{INTERRUPTED}\n")
    assert process.returncode == code
    assert_only_whole_shards(output, unbroken)


@pytest.mark.parametrize(("again", "workers"), AGAIN if SOAK else AGAIN[:2])
def test_a_killed_run_repeated_ends_in_the_same_bytes(
    again: str,
    workers: str,
    many: Store,
    output: Path,
    unbroken: dict[str, str],
    ended: list[subprocess.Popen[str]],
) -> None:
    process = started(many, output, 10, "--workers", workers)
    ended.append(process)
    children = commands.children(process.pid)
    process.kill()
    process.communicate()
    commands.wait_until(lambda: not any(map(commands.is_alive, children)))
    before = len(shards(output))
    assert 10 <= before < SHARDS
    # A reader sees whole shards only, even now.
    found = digests(output)
    for path in shards(output):
        name = str(path.relative_to(output))
        assert found[name] == unbroken[name]
    refused = commands.run(*flags(many, output))
    assert refused.returncode == 1
    assert "--resume" in refused.stderr
    assert "--overwrite" in refused.stderr
    done = commands.run(*flags(many, output, again))
    assert done.returncode == 0, done.stderr
    assert digests(output) == unbroken


def test_a_second_run_into_the_same_folder_is_told_who_is_there(
    many: Store, output: Path, unbroken: dict[str, str], ended: list[subprocess.Popen[str]]
) -> None:
    first = started(many, output, 1)
    ended.append(first)
    first.send_signal(signal.SIGSTOP)  # so that it is still there, however slow we are
    try:
        second = commands.run(*flags(many, output, "--overwrite"))
        other = commands.run(*flags(many, output.parent / "other", "--limit", "1"))
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 11
    assert f"process {first.pid} on " in second.stderr
    assert str(output) in second.stderr
    assert other.returncode == 0  # elsewhere there is nobody
    first.communicate(timeout=300)
    assert first.returncode == 0
    assert digests(output) == unbroken


def test_a_reader_who_leaves_early_is_no_traceback(store: Store, output: Path) -> None:
    with subprocess.Popen(
        [*commands.COMMAND, *map(str, flags(store, output))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert len(shards(output)) == 7
