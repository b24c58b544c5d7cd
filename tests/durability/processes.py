"""Real processes that run the command, forked from one that has imported everything already."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from shardwright.cli.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", __name__, "shardwright.deriving.run", "shardwright.packing.run"]
)


def start(arguments: Sequence[str | Path], told: Path) -> BaseProcess:
    """Start ``shardwright``; what it tells goes to a file."""
    process = _CONTEXT.Process(target=_run, args=([str(word) for word in arguments], str(told)))
    process.start()
    return process


def _run(arguments: list[str], told: str) -> None:
    fd = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    raise SystemExit(main(arguments))
