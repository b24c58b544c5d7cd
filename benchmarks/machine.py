"""What the figures were measured on, and with which versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shardwright.engine.local import cores

BUSY = 0.5  # a load above which others take so much of the machine that figures mean little
_LIBRARIES = (
    *("shardwright", "numpy", "msgspec", "xxhash", "webdataset", "datasets", "torch"),
    *("pillow", "simplejpeg", "pyvips", "opencv-python-headless", "faiss-cpu"),
)


def describe(folder: Path) -> dict[str, str | int | float]:
    """Describe the machine, and the file system that a folder is on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": cores(),
        "processor": _processor(),
        "memory_gb": round(memory / 2**30, 1),
        "filesystem": _filesystem(folder),
        "os": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Give the versions of Python and of whatever takes part."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Name the commit that is measured, if this is a repository; + if it was changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def load() -> float:
    """Give how many processes have been at work in the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _filesystem(folder: Path) -> str:
    """Find the mount with the longest path above a folder."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(len(m[1]), m[2]) for m in mounts if folder.resolve().is_relative_to(m[1])]
    return max(above, default=(0, "unknown"))[1]
