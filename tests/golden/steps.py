"""The words of the table: a command, and what users and accidents do between two commands."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden import inputs, rules

if TYPE_CHECKING:
    from tests.golden.workshop import Workshop


class Steps:
    """Takes the steps of one case; what they have started ends with it."""

    def __init__(self, shop: Workshop, engine: str = "one") -> None:
        self.shop, self.engine = shop, engine
        self.minutes = 0  # each change of an input is later than the one before
        self.held: list[subprocess.Popen[str]] = []
        self.mounted: list[Path] = []

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.held:
            process.kill()
            process.communicate()
        for place in self.mounted:
            subprocess.run(["umount", str(place)], check=True)

    def take(self, step: str) -> str:
        """Take one step, and give what is to be compared."""
        self.minutes += 1
        verb, *words = shlex.split(step)
        if verb == "shardwright":
            return f"$ {step}\n{self._run(words)}\n"
        getattr(self, verb)(*words)
        return f"$ {step}\n\n"

    def _run(self, words: list[str]) -> str:
        if self.shop.layout == "flux" and words and "--help" not in words:
            words = [*words, "--json"]
        done = self.shop.finish(words, self.engine)
        text = f"exit {done.returncode}\n{done.stdout}{rules.complaints(done.stderr)}"
        return rules.printed(text, self.shop.folder)

    def _path(self, path: str) -> Path:
        return self.shop.folder / path

    def picture(self, path: str, width: str, height: str, seed: str) -> None:
        """Paint a picture, also over another one."""
        data = inputs.picture(int(width), int(height), int(seed))
        inputs.write(self._path(path), data, self.minutes)

    def write(self, path: str, text: str) -> None:
        """Write a text file."""
        inputs.write(self._path(path), text.encode() + b"\n", self.minutes)

    def mv(self, path: str, target: str) -> None:
        """Rename a file."""
        self._path(path).rename(self._path(target))

    def cp(self, path: str, target: str) -> None:
        """Copy a file with its time."""
        shutil.copy2(self._path(path), self._path(target))

    def rm(self, *paths: str) -> None:
        """Remove files."""
        for path in paths:
            self._path(path).unlink()

    def flip(self, path: str, offset: str) -> None:
        """Change one byte, counted from the end if negative."""
        data = bytearray(self._path(path).read_bytes())
        data[int(offset)] ^= 0xFF
        self._path(path).write_bytes(data)

    def cut(self, path: str, length: str) -> None:
        """Cut off the end of a file."""
        os.truncate(self._path(path), int(length))

    def upload(self, path: str, key: str) -> None:
        """Put the files of a folder into the bucket."""
        assert self.shop.bucket is not None
        for file in sorted(self._path(path).rglob("*")):
            if file.is_file():
                name = f"{key}/{file.relative_to(self._path(path))}"
                self.shop.bucket.upload(name, file.read_bytes())

    def mount(self, path: str, size: str) -> None:
        """Mount a file system that is too small; where that is not allowed, there is no case."""
        self._path(path).mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self._path(path))]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("no small file system can be mounted here")
        self.mounted.append(self._path(path))

    def killed(self, name: str, *words: str) -> None:
        """Run a command that is killed as soon as there is a file whose name ends so."""
        done = self.shop.finish([*words[1:]], self.engine, at=f"kill after 1 {name}")
        assert done.returncode == -signal.SIGKILL, done.stderr

    def hold(self, number: str, *words: str) -> None:
        """Start a command that stops at its nth change, until the case ends."""
        process = self.shop.start([*words[1:]], at=f"stop before {number}")
        self.held.append(process)
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found is not None
        assert found.si_code == os.CLD_STOPPED, "it ended before it was to stop"
