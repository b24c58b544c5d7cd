"""Ctrl-C while the command is still being imported: an exit code, and no traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = (  # what an installer writes
    "import sys\n"
    "sys.argv = ['/usr/local/bin/shardwright', '--version']\n"
    "from shardwright.__main__ import main\n"
    "sys.exit(main())"
)


@pytest.mark.parametrize(
    "arguments", [["-m", "shardwright", "--version"], ["-c", SCRIPT]], ids=["module", "script"]
)
def test_an_interrupt_while_the_command_is_imported_is_quiet(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_is_imported_before_an_interrupt_is_caught() -> None:
    script = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import shardwright.__main__\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "shardwright shardwright.__main__\n"


@pytest.mark.parametrize(
    "arguments", [["-m", "shardwright", "--version"], ["-c", SCRIPT]], ids=["module", "script"]
)
def test_an_interrupt_at_any_moment_of_the_start_is_quiet(arguments: list[str]) -> None:
    """Before our first line runs, the interpreter ends in a manner of its own."""
    for delay in range(0, 155, 5):
        with subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            time.sleep(delay / 1000)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=150)
        ours = re.search(r'shardwright/__main__\.py", line \d+, in main', told)
        assert ours is None, f"after {delay} ms: {told}"
        if not told:
            assert process.returncode in (-signal.SIGINT, 130, 0), f"after {delay} ms"


ENDED = """
class Ended(KeyboardInterrupt):
    exit_code = 143
raise Ended
"""

SIGNALLED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
except BaseException:
    raise ImportError("as code in C would have it")
"""


@pytest.mark.parametrize(
    ("module", "content", "told"),
    [("argparse", ENDED, ""), ("msgspec", SIGNALLED, "Interrupted\n")],
    ids=["before the command", "while it is imported"],
)
def test_a_signal_keeps_its_exit_code(tmp_path: Path, module: str, content: str, told: str) -> None:
    (tmp_path / f"{module}.py").write_text(content)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", "pack", "--derived-dir", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", told)
