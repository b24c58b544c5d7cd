"""Real processes that run the command, forked from one that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import shardwright.__main__
from shardwright.cli.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("pytest", __name__, "tests.clients"),
        *("shardwright.deriving.run", "shardwright.building.run", "shardwright.packing.run"),
        *("shardwright.verifying.folder", "shardwright.reporting.store_status"),
    ]
)


def start(arguments: Sequence[str | Path], told: Path) -> BaseProcess:
    """Start ``shardwright``; what it tells goes to a file."""
    process = _CONTEXT.Process(target=_start, args=([str(word) for word in arguments], str(told)))
    process.start()
    return process


def run(
    arguments: Sequence[str | Path],
    folder: Path,
    timeout: float,
    memory: int = resource.RLIM_INFINITY,
) -> subprocess.CompletedProcess[str]:
    """Run ``shardwright`` as its command does, in a folder and with the environment of now."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as told:
        place = (told, str(folder), dict(os.environ), memory)
        process = _CONTEXT.Process(target=_run, args=(words, *place))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        output = [Path(told, name).read_text("utf-8") for name in ("1", "2")]
    return subprocess.CompletedProcess(words, process.exitcode, *output)


def _start(arguments: list[str], told: str) -> None:
    fd = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    raise SystemExit(main(arguments))


def _run(
    arguments: list[str], told: str, folder: str, environment: dict[str, str], memory: int
) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for number in (1, 2):
        os.dup2(os.open(f"{told}/{number}", os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["shardwright", *arguments]
    try:
        shardwright.__main__.main()
    except Exception:  # an ordinary process shows it without a word on processes
        sys.excepthook(*sys.exc_info())
        os._exit(1)
