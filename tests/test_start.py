"""The command starts without anything it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import make_store, records

WITHOUT = """
import sys
for name in ("torch", "transformers", "diffusers"):
    sys.modules[name] = None  # as if it were not installed
from shardwright.cli.main import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code == 0, end.code
for name in ("numpy", "PIL", "tqdm", "webdataset", "shardwright.demo", "asyncio", "ssl"):
    assert name not in sys.modules, name
"""


def without_libraries(*arguments: str) -> str:
    """Run a command where heavy libraries are not installed, and give what it prints."""
    script = WITHOUT.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["pack", "--help"]])
def test_help_needs_no_heavy_library(arguments: list[str]) -> None:
    assert "shardwright" in without_libraries(*arguments)


def test_packing_needs_no_heavy_library(tmp_path: Path) -> None:
    store = make_store(tmp_path / "derived", records(2))
    flags = ("--derived-dir", str(store.root), "--output-dir", str(tmp_path / "out"))
    assert "written_samples: 2" in without_libraries("pack", *flags).splitlines()


def test_the_package_imports_no_heavy_library() -> None:
    script = (
        "import sys, shardwright\n"
        "print([n for n in ('numpy', 'PIL', 'torch', 'tqdm') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=150
    )
    assert done.stdout == "[]\n", done.stderr
