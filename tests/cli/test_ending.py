"""How the command ends: at once, with its exit code, and all its output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.derive.pictures import make_images
from tests.store.small import small_store

# What a library in C that counts its objects at the very end does, but one that nobody overlooks.
COUNTS_AT_THE_END = """
import ctypes
ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)
"""

# What a library in Python does that has to tidy up: it is imported by the command, so later.
TIDIES_UP = """
import atexit, sys
def imported(event, arguments):
    if event == "import" and arguments[0] == "shardwright.deriving.run":
        atexit.register(print, "tidied up")
sys.addaudithook(imported)
"""


def derive(folder: Path, library: str) -> subprocess.CompletedProcess[str]:
    images = make_images(folder / "images", 2)
    (images / "broken.jpg").write_text("not a picture")
    (images / "broken.txt").write_text("a caption")
    (folder / "path").mkdir()
    (folder / "path/sitecustomize.py").write_text(library)
    path = os.pathsep.join([str(folder / "path"), os.environ.get("PYTHONPATH", "")])
    store = ("--derived-dir", folder / "d", "--encoders", "sketch")
    return subprocess.run(
        [*commands.COMMAND, "derive", images, *store],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_process_ends_before_libraries_count_what_they_take_for_leaks(tmp_path: Path) -> None:
    done = derive(tmp_path, COUNTS_AT_THE_END)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("derived 2 images")
    assert done.stdout.endswith("Fix it and rerun\n")


def test_libraries_may_tidy_up_before_the_process_ends(tmp_path: Path) -> None:
    done = derive(tmp_path, TIDIES_UP)
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("Fix it and rerun\ntidied up\n")


def test_the_entry_point_ends_the_process_itself_and_not_later_what_others_do() -> None:
    script = (
        "import sys; sys.argv = ['shardwright', 'status', '--derived-dir', 'nowhere']\n"
        "from shardwright.__main__ import main\n"
        "main(); print('others go on'); sys.exit(5)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "--derived-dir", "derived"], 0),
        (["status", "--derived-dir", "derived", "--json"], 0),
        (["verify", "derived"], 12),
        (["--help"], 0),
        (["pack", "--help"], 0),
        (["--version"], 0),
    ],
)
def test_a_reader_that_leaves_early_does_not_change_the_exit_code(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    store = small_store(tmp_path / "derived")
    store.array("vae", "img1").unlink()
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*commands.COMMAND, *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        timeout=300,
    )
    os.close(writing)
    assert done.returncode == code
    for words in ("Traceback", "Error", "Exception"):
        assert words not in done.stderr
