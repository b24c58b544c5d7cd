"""The peak memory of a process and all its workers together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SHORTEST = 0.005  # seconds between two looks
_SHARE = 50  # a look may take one part in so many of the time, for it holds the process up


class Peak(threading.Thread):
    """Looks at a tree of processes again and again, until it is told to stop.

    A page that several of them share counts once. Pages of files they map do not count: they are
    the system's cache, which it takes back when it needs them. Without /proc there is no figure.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.bytes = 0
        self._over = threading.Event()

    def run(self) -> None:
        took = 0.0
        while not self._over.wait(max(_SHORTEST, took * _SHARE)):
            began = time.thread_time()
            self.bytes = max(self.bytes, sum(map(_own_bytes, _tree(self.pid))))
            took = time.thread_time() - began

    def stop(self) -> float | None:
        """Give the peak in MB."""
        self._over.set()
        self.join()
        return round(self.bytes / 1e6, 1) if self.bytes else None


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):  # it may end while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from _tree(int(child))


def _own_bytes(pid: int) -> int:
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total
