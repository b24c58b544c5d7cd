"""How work on files is spread over the cores.

A task function is a generator; whatever it yields reaches the caller as it happens, so progress
and results travel the same way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from shardwright.validate import whole

Task = TypeVar("Task")
Message = TypeVar("Message")


def cores() -> int:
    """Count the cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def count(workers: int | None) -> int:
    """Give the number of workers asked for, or one for each core."""
    if workers is None:
        return cores()
    return whole("--workers", workers, least=1)


def run(
    function: Callable[[Task], Iterator[Message]], tasks: Iterable[Task], workers: int
) -> Generator[Message, None, None]:
    """Run each task in one of the workers and yield what they say, in the order it arrives.

    Tasks are taken from the iterable only when a worker is free for them. An error in a task ends
    the pool and is raised here; close the generator to end the pool early. One worker means this
    very process.
    """
    if workers <= 1:
        for task in tasks:
            yield from function(task)
        return
    from shardwright.engine.pool import Pool  # here, because one worker needs no multiprocessing

    pool = Pool(function)
    try:
        yield from pool.run(iter(tasks), workers)
    finally:
        pool.kill()
