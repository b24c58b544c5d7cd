"""Only regular files are opened: with anything else in a file's place, every command still ends.

Whoever opens a pipe waits for its other end, and a device may have no end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.layout import JSONL_NAME
from shardwright.store.journal import journal_path
from tests import stage1
from tests.building.builds import Interrupting, write_recipe
from tests.building.tarsets import write_set
from tests.derive.pictures import make_images, sketch
from tests.durability import processes
from tests.durability.soak import SOAK, Tally

SKETCH = "--encoders sketch --recipe small.toml"
LOADERS = ("energon", "dali", "wids", "webshart", "hf")

# Commands, and the files and folders that each reads.
COMMANDS = {
    "recipe": ("recipe small.toml", "small.toml"),
    "build": (
        f"build images images.tar --output-dir out {SKETCH} --captions captions.csv "
        "--exclude-ids-file bad.txt",
        "images images.tar small.toml captions.csv bad.txt",
    ),
    "build, again": (f"build images --output-dir built {SKETCH}", "built images small.toml"),
    "build, interrupted": (f"build images --output-dir begun {SKETCH}", "begun images small.toml"),
    "build --append": (
        f"build images.tar --output-dir built --append {SKETCH}",
        "built images.tar small.toml",
    ),
    "build --from": (
        "build --from built --components t5 --output-dir out --encoders sketch",
        "built",
    ),
    "derive": (
        f"derive images --derived-dir out {SKETCH} --captions captions.jsonl",
        "images small.toml captions.jsonl",
    ),
    "derive, killed": ("derive images --derived-dir killed --encoders sketch", "killed images"),
    "derive --update": (
        "derive images --derived-dir store --encoders sketch --update --prune",
        "store images",
    ),
    "derive --recompute": (
        "derive images --derived-dir store --encoders sketch --recompute t5",
        "store images",
    ),
    "migrate": ("migrate --derived-dir stage1", "stage1"),
    "status": ("status store", "store shards"),
    "status --export": ("status store --export table.csv", "store"),
    "pack": ("pack --derived-dir store --output-dir out --ids-file bad.txt", "store bad.txt"),
    "pack --append": ("pack --derived-dir store --output-dir shards --append", "shards store"),
    "pack --sync": ("pack --derived-dir store --output-dir shards --sync", "shards store"),
    "pack --resume": ("pack --derived-dir store --output-dir halfway --resume", "halfway"),
    "pack --overwrite": (
        "pack --derived-dir store --output-dir shards --overwrite",
        "shards store",
    ),
    "verify STORE": ("verify store --read-data", "store"),
    "verify SHARDS": ("verify shards --read-data --loaders", "shards"),
    "verify --against STORE": ("verify shards --against store", "shards store"),
    "verify --against IMAGES": ("verify built --against images", "built images"),
    "look STORE": ("look store --report page.html", "store images"),
    "look SHARDS": ("look shards --report page.html", "shards images"),
    "look --id": ("look shards --id img000", "shards images"),
    "look --duplicates": ("look store --duplicates list.jsonl", "store"),
    "index": (f"index shards --for {','.join(LOADERS)}", "shards"),
    "index --remove": (f"index shards --for {','.join(LOADERS)} --remove", "shards"),
}
ENDS = (0, 1, 2, 3, 12)  # what our commands end with
MEMORY = 8 << 30  # bytes of addresses: a device would take all there are


def to_pipe(path: Path) -> None:
    os.mkfifo(path)


def to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path may be too long for a socket
        os.close(folder)


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": to_pipe,
    "a device": to_device,
    "a socket": to_socket,
    "a folder": Path.mkdir,
    "a link to itself": to_itself,
}


class Project:
    """Images, stores and shards in many states, in a folder that can be restored."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._kept = folder / "project", folder / "kept"
        self.folder.mkdir()
        with chdir(self.folder):  # where it is used: a build remembers where its images are
            make_project()
        self.folder.rename(self._kept)

    def files(self, roots: str) -> list[Path]:
        """List the files below some roots; one sample's are enough."""
        found = [path for root in roots.split() for path in _below(self._kept / root)]
        return [path.relative_to(self._kept) for path in found if "img001" not in path.name]

    def restore(self) -> None:
        """Make the folder as it was."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._kept, self.folder)

    def run(self, line: str, path: Path, kind: str) -> subprocess.CompletedProcess[str]:
        """Run a command with something else in the place of a file."""
        self.restore()
        if kind in KINDS:
            (self.folder / path).unlink()
            KINDS[kind](self.folder / path)
        return processes.run(line.split(), self.folder, 120, MEMORY)


def make_project() -> None:
    recipe = write_recipe(Path()).name
    images = make_images(Path("images"), 2, ((64, 64),))
    write_set(Path("images.tar"), ["x"])
    Path("captions.csv").write_text("file_name,caption\nimg000.png,of a row\n")
    Path("captions.jsonl").write_text('{"image_path": "img000.png", "caption": "of a row"}\n')
    Path("bad.txt").write_text("img001\n")
    sketch(images, Path("store"), recipe=recipe)
    Path("store/.shardwright/failures.jsonl").write_bytes(b"")
    shardwright.pack(derived_dir="store", output_dir="shards", sha256=True, workers=1)
    shardwright.index("shards", for_=LOADERS)
    made: dict[str, Any] = {"encoders": "sketch", "recipe": recipe}
    shardwright.build(images, output_dir="built", **made)
    with pytest.raises(KeyboardInterrupt):
        shardwright.build(images, output_dir="begun", progress=Interrupting(1), **made)
    disturbed = Interrupting(1, "write")
    with pytest.raises(KeyboardInterrupt):
        shardwright.pack(derived_dir="store", output_dir="halfway", progress=disturbed, workers=1)
    killed = shutil.copytree("store", "killed") + f"/{JSONL_NAME}"
    first, second = Path(killed).read_bytes().splitlines(keepends=True)
    Path(killed).write_bytes(first)
    journal_path(Path(killed)).write_bytes(second)
    stage1.write(Path("stage1"), stage1.record("a"), stage1.record("b", 1))


def _below(path: Path) -> list[Path]:
    return sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_finds_no_regular_file_ends_and_names_it(
    project: Project, name: str, tally: Tally
) -> None:
    line, roots = COMMANDS[name]
    files = project.files(roots)
    usual = project.run(line, files[0], "a file")
    assert usual.returncode == 0, usual.stderr
    for number, path in enumerate(files):
        # A pipe is what makes most calls wait; the others take turns.
        kinds = list(KINDS) if SOAK else ["a pipe", list(KINDS)[1 + number % (len(KINDS) - 1)]]
        for kind in kinds:
            done = project.run(line, path, kind)
            what = f"{kind} at {path}: {done.returncode} {done.stderr}"
            assert done.returncode in ENDS, what
            assert "Traceback" not in done.stderr, what
            if "error: " in done.stderr:
                names = [path.stem, "/dev/zero"]
                if kind == "a folder" and path.parts[0] == "images":
                    # Then there is one image or text less, so it is another build.
                    names.append("shard-000000.tar: already exists, so nothing was written")
                assert any(each in done.stderr for each in names), what
            else:  # it is not needed, is replaced, or counts as one sample that cannot be used
                assert done.returncode in (0, 3, 12), what
    tally(files_replaced=len(files))


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("look shards --report page.html", "shards/.shardwright/manifest.json"),
        ("verify shards", "shards/.shardwright/manifest.json"),
        (
            "derive images --derived-dir store --encoders sketch",
            "store/.shardwright/provenance.json",
        ),
        ("status store", f"store/{JSONL_NAME}"),
    ],
    ids=["look", "verify", "derive", "status"],
)
def test_the_error_about_a_pipe_in_the_place_of_a_file_gives_the_fix(
    project: Project, line: str, file: str
) -> None:
    done = project.run(line, Path(file), "a pipe")
    told = f"error: {file}: is a pipe, not a regular file; put the file itself there\n"
    assert done.returncode in ENDS
    assert told in done.stderr


# Only regular files are opened, and without waiting. What can still take its time is a file that
# the kernel has lent to another process, as a file server does: it is asked for it back.
HOLDER = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
try:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as error:
    sys.exit(error.strerror)
print("held", flush=True)
signal.sigwait([signal.SIGIO])
print("asked", flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lends files")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("verify shards", "shards/.shardwright/manifest.json"),
        ("status store", f"store/{JSONL_NAME}"),
        ("build --from built --components t5 --output-dir out", "built/.shardwright/manifest.json"),
        (f"derive images --derived-dir out {SKETCH}", "images/img000.png"),
        (f"derive images --derived-dir out {SKETCH}", "images/img000.txt"),
    ],
    ids=["verify", "status", "build", "derive, a picture", "derive, a caption"],
)
def test_a_signal_ends_a_command_that_waits_for_a_file(
    project: Project, line: str, file: str, number: signal.Signals, code: int
) -> None:
    project.restore()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, project.folder / file], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        try:
            if holder.stdout.readline() != "held\n":
                pytest.skip("this file system lends no files")
            words = [sys.executable, "-m", "shardwright", *line.split()]
            command = subprocess.Popen(words, cwd=project.folder, stderr=subprocess.PIPE, text=True)
            assert holder.stdout.readline() == "asked\n"
            command.send_signal(number)
            _, told = command.communicate(timeout=120)
            assert command.returncode == code, told
            assert "Traceback" not in told
        finally:
            holder.kill()
