"""Ctrl-C while the command is still being imported: an exit code, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = (  # what an installer writes
    "import sys\n"
    "sys.argv = ['/usr/local/bin/shardwright', '--version']\n"
    "from shardwright.__main__ import main\n"
    "sys.exit(main())"
)


def interrupted_at(module: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a module whose import is interrupted."""
    (folder / f"{module}.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("module", ["msgspec", "argparse"])
@pytest.mark.parametrize(
    "arguments", [["-m", "shardwright", "--version"], ["-c", SCRIPT]], ids=["module", "script"]
)
def test_an_interrupt_at_any_import_is_quiet(
    tmp_path: Path, arguments: list[str], module: str
) -> None:
    done = interrupted_at(module, tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_program_that_imports_the_package_gets_its_own_interrupt(tmp_path: Path) -> None:
    program = "try:\n    import shardwright\nexcept KeyboardInterrupt:\n    print('mine')"
    assert interrupted_at("msgspec", tmp_path, "-c", program).stdout == "mine\n"
