"""A signal while the command is still being imported: an exit code, and no traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.building.builds import write_recipe
from tests.derive.pictures import make_images

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
    assert done.stdout == "shardwright shardwright.__main__ shardwright.starting\n"


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
        if told in ("", "Interrupted\n"):
            codes = (130,) if told else (-signal.SIGINT, 0)
            assert process.returncode in codes, f"after {delay} ms"


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


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
STARTS: dict[str, list[str | Path]] = {
    "module": [sys.executable, "-m", "shardwright"],
    "script": [Path(sys.executable).with_name("shardwright")],
}
SIGNALLING = Path(__file__).parents[1] / "signalling"


def signalled(
    start: str, *arguments: str | Path, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that signals itself; see ``tests/signalling``."""
    return subprocess.run(
        [*prefix, *STARTS[start], *arguments],
        env={**os.environ, "PYTHONPATH": str(SIGNALLING), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def imports(folder: Path, start: str, *arguments: str | Path) -> int:
    """Count the imports of a command that nothing interrupts."""
    count = folder / "count"
    done = signalled(start, *arguments, COUNT_TO=str(count))
    assert done.returncode == 0, done.stderr
    return int(count.read_text())


@pytest.mark.parametrize("start", STARTS)
def test_a_signal_at_any_import_of_a_build_ends_it_with_one_line_and_its_code(
    tmp_path: Path, start: str
) -> None:
    images, flags = make_images(tmp_path / "images", 2), ("--recipe", write_recipe(tmp_path))
    command = ("build", images, *flags, "--encoders", "sketch", "--output-dir")
    count = imports(tmp_path, start, *command, tmp_path / "complete")
    assert count > 200
    for turn, at in enumerate(range(1, count + 1, count // 15)):
        number, code = list(CODES.items())[turn % 3]
        done = signalled(start, *command, tmp_path / str(at), SIGNAL_AT=f"{number} at {at}")
        where = f"{number!r} at import {at} of {count}: {done.stderr}"
        assert done.returncode == code, where
        assert done.stdout == "", where
        lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        assert [line.partition(";")[0] for line in lines] == ["Interrupted"], where


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_at_any_import_of_version_ends_it_with_one_line_and_its_code(
    tmp_path: Path, number: signal.Signals
) -> None:
    count = imports(tmp_path, "module", "--version")
    for at in range(1, count + 1, 5):
        done = signalled("module", "--version", SIGNAL_AT=f"{number} at {at}")
        result = (done.returncode, done.stdout, done.stderr)
        assert result == (CODES[number], "", "Interrupted\n"), f"at import {at} of {count}"


@pytest.mark.parametrize("at", [1, 100])
def test_a_lost_session_does_not_end_a_command_under_nohup(tmp_path: Path, at: int) -> None:
    (tmp_path / "derived").mkdir()
    flags = ("status", "--derived-dir", tmp_path / "derived")
    usual = signalled("module", *flags)
    number = int(signal.SIGHUP)
    hung_up = signalled("module", *flags, SIGNAL_AT=f"{number} at {at}")
    assert hung_up.returncode == 129
    kept = signalled("module", *flags, prefix=["nohup"], SIGNAL_AT=f"{number} at {at}")
    assert kept.returncode == usual.returncode
    assert untimed(kept.stdout) == untimed(usual.stdout)
    assert "Interrupted" not in kept.stderr


def untimed(text: str) -> str:
    """Leave out how long something took."""
    return re.sub(r"\d+\.\d s\b", "", text)
