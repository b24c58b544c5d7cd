"""Runs cases: each in a copy of what the case before it has left, always in the same folder.

The folder has one path, as a store keeps the absolute paths of its images. What a case leaves is
kept for the cases after it, so nothing is made twice in one process.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden import inputs, rules
from tests.golden.cases import CASES, WORDS, Case
from tests.golden.relay import BUCKET, Relay
from tests.golden.steps import Steps
from tests.servers import KEY, SECRET

HERE = Path(__file__).parent
_COMMAND = Path(sys.executable).with_name("shardwright")
# How an engine is asked for, by commands that have devices and by those that have workers.
_DEVICES = {"one": "--device cpu", "two": "--device cpu:2", "ray": "--device cpu"}
_WORKERS = {"one": "--workers 1", "two": "--workers 2", "ray": ""}
_RAY = "--engine ray --ray-address local"  # for those that know it
_ON = {"derive": _DEVICES, "build": _DEVICES} | dict.fromkeys(
    ("pack", "verify", "status", "migrate"), _WORKERS
)

Tree = dict[str, str]  # by path: the SHA-256 of a file, or what else is there
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Result:
    """What a case has printed, and what it has left."""

    text: str
    start: Tree
    end: Tree

    @property
    def changes(self) -> str:
        """The files that are new (+), changed (~) or gone (-) at its end, with their SHA-256."""
        lines = []
        for path in sorted(self.start.keys() | self.end.keys()):
            before, now = self.start.get(path), self.end.get(path)
            if now is None:
                lines.append(f"- {path}")
            elif before != now:
                lines.append(f"{'+' if before is None else '~'} {now} {path}")
        return "\n".join([f"files: {len(lines)} changed", *lines, ""])


@dataclass
class Workshop:
    """A folder to work in, and what was made so far, for one layout of samples."""

    root: Path
    layout: str
    served: Callable[[], Relay]  # gives the object store, which starts when it is needed
    bucket: Relay | None = None  # the one of this case
    kept: dict[str, Result] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where commands run."""
        return self.root / "work"

    def result(self, name: str) -> Result:
        """Run a case, or give what it gave."""
        if name not in self.kept:
            self.kept[name] = self.run(CASES[name])
            if any(case.after == name for case in CASES.values()):
                self.keep(name)
        return self.kept[name]

    def run(self, case: Case, engine: str = "one") -> Result:
        """Run a case from its start to its end."""
        self.begin(case)
        start = self.tree(case.files)
        with Steps(self, engine) as steps:
            text = "".join(map(steps.take, self.steps_of(case)))
            end = self.tree(case.files)
        return Result(text, start, end)

    def before_last(self, case: Case) -> list[str]:
        """Take all steps of a case but its last one; give the words of that."""
        self.begin(case)
        *steps, last = self.steps_of(case)
        with Steps(self) as taken:
            for step in steps:
                taken.take(step)
        return shlex.split(last)[1:]

    def begin(self, case: Case) -> None:
        """Lay out what a case starts from."""
        if case.after != "inputs":
            self.result(case.after)
        elif not (self.root / "states/inputs").exists():
            inputs.make(self.root / "states/inputs", self.layout)
        self.bucket, self.objects = self.served() if case.url else None, {}
        self.restore(case.after)

    def keep(self, name: str) -> None:
        """Keep what is there now, for others to start from."""
        shutil.rmtree(self.root / "states" / name, ignore_errors=True)
        shutil.copytree(self.folder, self.root / "states" / name, symlinks=True)
        if self.bucket is not None:
            self.objects = self.bucket.contents()

    def restore(self, name: str) -> None:
        """Go back to what was kept."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.root / "states" / name, self.folder, symlinks=True)
        if self.bucket is not None:
            self.bucket.replace(self.objects)

    def steps_of(self, case: Case) -> list[str]:
        """Give the steps of a case in the words of this layout."""
        steps = list(case.steps)
        for word, meaning in WORDS[self.layout].items():
            steps = [step.replace(word, meaning) for step in steps]
        return steps

    def tree(self, only: str = "") -> Tree:
        """Give all that is in the folder and in the bucket, and has such a path."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if path.is_symlink():
                found[name] = f"link to {os.readlink(path)}"
            elif path.is_file():
                found[name] = self._digest(path.read_bytes())
                if (mode := path.stat().st_mode & 0o777) != 0o644:
                    found[name] += f" {mode:o}"
            elif not any(path.iterdir()):
                found[name] = "empty folder"
        if self.bucket is not None:
            objects = self.bucket.contents()
            found |= {f"s3://{BUCKET}/{key}": self._digest(objects[key]) for key in objects}
        return {rules.named(name): what for name, what in found.items() if re.search(only, name)}

    def _digest(self, data: bytes) -> str:
        return hashlib.sha256(rules.held(data, self.folder)).hexdigest()

    # Commands.

    @property
    def environment(self) -> dict[str, str]:
        """What commands see: nothing of the user's but where programs are."""
        names = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
        given = {name: os.environ[name] for name in names if name in os.environ}
        for name in ("home", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        given |= {"HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp")}
        given |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""}
        given |= {"RAY_TMPDIR": "/tmp"}  # its sockets need short paths
        if self.bucket is not None:
            given |= {"AWS_ENDPOINT_URL": self.bucket.url, "AWS_REGION": "us-east-1"}
            given |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
            given |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
            given |= {"AWS_EC2_METADATA_DISABLED": "true"}
        return given

    def start(self, words: list[str], engine: str = "one", **hook: str) -> subprocess.Popen[str]:
        """Start a command; the hook ends or stops it, or writes down what it does."""
        environment = self.environment
        if hook:
            paths = [str(HERE / "hook"), *filter(None, [environment.get("PYTHONPATH")])]
            environment |= {"PYTHONPATH": os.pathsep.join(paths)}
            environment |= {f"GOLDEN_{name.upper()}": value for name, value in hook.items()}
        name = words[0] if words else ""
        flags = _ON[name][engine].split() if name in _ON else []
        if flags and flags[0] in words:  # the case gives it itself
            flags = []
        if engine == "ray" and name in ("pack", "build", "verify"):
            flags += _RAY.split()
        return subprocess.Popen(
            [str(_COMMAND), *words, *flags],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            umask=0o022,
        )

    def finish(self, words: list[str], engine: str = "one", **hook: str) -> Done:
        """Run a command to its end."""
        before = self._temporary()
        process = self.start(words, engine, **hook)
        out, err = process.communicate(timeout=300)
        assert hook or self._temporary() <= before, f"left: {self._temporary() - before}"
        assert "Traceback (most recent call last)" not in err, err  # which is never expected
        return Done(words, process.returncode, out, err)

    def _temporary(self) -> set[Path]:
        found = (self.root / "tmp").rglob("*")
        return {path for path in found if not rules.OF_TORCH.fullmatch(path.name)}

    def changes_of(self, words: list[str]) -> list[str]:
        """Run a command; give its calls that change something here, in their order."""
        log = self.root / "log"
        log.unlink(missing_ok=True)
        self.finish(words, log=str(log))
        return log.read_text().splitlines()

    def requests_of(self, words: list[str]) -> int:
        """Run a command; give how many requests change something in the bucket."""
        assert self.bucket is not None
        self.bucket.restart()
        self.finish(words)
        return self.bucket.writes

    def kill(self, words: list[str], number: int, when: str) -> int:
        """Run a command that is killed at its nth change; give how it has ended."""
        if self.bucket is None:
            return self.finish(words, at=f"kill {when} {number}").returncode
        process: subprocess.Popen[str]

        def watch(seen: int, at: str) -> bool:
            if is_it := (seen, at) == (number, when):
                process.send_signal(signal.SIGKILL)
                process.wait()
            return is_it

        self.bucket.restart(watch)
        process = self.start(words)
        process.communicate(timeout=300)
        self.bucket.restart()
        return process.returncode
