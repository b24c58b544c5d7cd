"""``python -m tests.fuzz``: feed every target what leads a fuzzer to lines it has not seen yet.

Each target runs in a process of its own for some time, beginning with real files. Whatever comes
out that is not ours ends it, and the input that did it is kept. Needs atheris, as ``make soak``
installs it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAMES = ("record_lines", "array_file", "tar", "manifest_file", "index_file", "state_file")
_LIMITS = ("-rss_limit_mb=1500", "-timeout=20", "-max_len=32768", "-print_final_stats=1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, help="for each target (%(default)s)")
    parser.add_argument("--keep", type=Path, default=Path("."), help="where a bad input is kept")
    options = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda name: run(name, options.seconds, options.keep), NAMES))
    for name, (code, executions, output) in zip(NAMES, done, strict=True):
        print(f"{executions:11,} fuzz executions of {name}")
        if code:
            print(f"{output}\n{name} failed", file=sys.stderr)
    print(f"{sum(executions for _, executions, _ in done):11,} fuzz executions")
    return int(any(code for code, _, _ in done))


def run(name: str, seconds: int, keep: Path) -> tuple[int, int, str]:
    """Fuzz one target; give its exit code, its executions, and the end of its output."""
    # All that it writes goes into memory, and goes away: libFuzzer ends without a goodbye.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="shardwright-", dir=memory) as folder:
        seeds = os.path.join(folder, "seeds")
        os.mkdir(seeds)
        command = [sys.executable, "-m", "tests.fuzz.one", name, *_LIMITS, seeds]
        command += [f"-max_total_time={seconds}", f"-artifact_prefix={keep}/{name}-"]
        done = subprocess.run(
            command,
            env=os.environ | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    found = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    executions = int(found[1]) if found else 0
    return done.returncode or int(not executions), executions, done.stdout[-8000:]


if __name__ == "__main__":
    raise SystemExit(main())
