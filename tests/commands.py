"""Running the real command in a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.durability import processes

COMMAND = (sys.executable, "-m", "shardwright")


def run(
    *arguments: str | Path, cwd: Path | None = None, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``shardwright`` and give its exit code and output.

    Python starts only if it gets an environment of its own: elsewhere that takes most of the time.
    """
    if not environment:
        return processes.run(arguments, cwd or Path.cwd(), timeout)
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        env=os.environ | environment,
    )


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start ``shardwright`` and go on; its standard error is a pipe to read."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def children(pid: int) -> list[int]:
    """List the children of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than an entry that waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until something is so; fail if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
