"""What this machine has: memory for a batch, and a CPU that may compute in bfloat16."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from shardwright import regular
from shardwright.deriving.batches import Pass

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's


def rooms(passes: Iterable[Pass]) -> dict[Pass, int]:
    """Count the input numbers that fit into memory, for each pass that says what it needs.

    Where models take turns, what is free now is not what will be: batches that are too large are
    halved.
    """
    return {
        each: room(each.device, free_memory(each.device), each.bytes_per_number)
        for each in passes
        if each.bytes_per_number and not each.takes_turns
    }


def room(device: str, free: int, bytes_per_number: int) -> int:
    """Count the input numbers that may be encoded at a time.

    A CUDA device without room for a batch says so, and the batch is halved. On a CPU the system
    kills the process instead, and large batches gain little: use a quarter of the memory.
    """
    share = free if device.startswith("cuda") else free // 4
    return share // bytes_per_number


def has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16, or is unknown."""
    words = _read(CPUINFO).split()
    return not words or not _BFLOAT16.isdisjoint(words)


def free_memory(device: str) -> int:
    """Count the free bytes of a device, or all its bytes where only that is known."""
    if device.startswith("cuda"):
        from shardwright.encoders.devices import free_on_cuda  # here, because it needs torch

        return free_on_cuda(device)
    words = _read(MEMINFO).split()
    if "MemAvailable:" not in words:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([int(words[words.index("MemAvailable:") + 1]) << 10, *_limits()])


def peak_memory(device: str) -> int:
    """Count the most bytes that were in use at a time on a device; on the CPU, by this process."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    most = getrusage(RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _limits() -> Iterator[int]:
    """Find the limits that a container or a batch system has set, if any."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, kinds, path = line.split(":", 2)
        folder = CGROUPS / ("memory" if kinds else "") / path.lstrip("/")
        if not kinds or "memory" in kinds.split(","):
            for place in (folder, *folder.parents):
                for name in ("memory.max", "memory.limit_in_bytes"):
                    if (limit := _read(place / name).strip()).isdigit():  # it may be "max"
                        yield int(limit)


def _read(path: Path) -> str:
    try:
        return regular.read(path).decode()
    except OSError:  # not Linux, or not for us
        return ""
