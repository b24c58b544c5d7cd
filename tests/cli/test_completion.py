"""What shells complete: commands, flags, known words and paths, asked of the shells themselves."""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from shardwright.cli.main import COMMANDS, parser
from shardwright.cli.options import Known
from shardwright.encoders import SETS
from shardwright.encoders.base import DTYPES
from shardwright.recipes.keys import DECODES, FITS
from shardwright.shards.loaders.indexes import LOADERS
from tests import commands

COMPLETED = {
    "shardwright stat": "status",
    "shardwright pack --overw": "--overwrite",
    "shardwright verify some": "somewhere/",
    "shardwright verify --against some": "somewhere/",
    "shardwright derive somewhere --captions cap": "captions.csv",
    "shardwright derive --fit b": "bucket",
    "shardwright index --for we": "webshart",
    "shardwright completion fi": "fish",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with something to complete, and a command that shells can find."""
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "something").write_text("a file, where only folders are asked for")
    (tmp_path / "captions.csv").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/shardwright").write_text("#!/bin/sh\n")
    (tmp_path / "bin/shardwright").chmod(0o755)
    return tmp_path


def require(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (make test installs it as root, with apt)")


def script(shell: str) -> str:
    done = commands.run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder}/bin:{os.environ['PATH']}"
    return {"HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "dumb", "PATH": path}


def ask(folder: Path, shell: str, text: str) -> list[list[str]]:
    """Run a shell script, and give the lines that it prints up to each line ``==``."""
    done = subprocess.run(
        [shell, "-c", text],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [part.splitlines() for part in done.stdout.split("==\n")[:-1]]


def bash(folder: Path, lines: list[str]) -> list[list[str]]:
    """Call the function that bash calls for the Tab key."""
    (folder / "script").write_text(script("bash"))
    asked = ["source ./script", "read -r _ _ _ _ function _ <<< $(complete -p shardwright)"]
    for line in lines:
        words = line.split(" ")
        asked += [
            f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
            "$function && printf '%s\\n' ${COMPREPLY[@]} && echo ==",
        ]
    return ask(folder, "bash", "\n".join(asked))


def fish(folder: Path, lines: list[str]) -> list[list[str]]:
    """Let fish load the script from its own folder, and list what it would complete."""
    require("fish")
    place = folder / ".config/fish/completions/shardwright.fish"
    place.parent.mkdir(parents=True)
    place.write_text(script("fish"))
    asked = (f"complete -C {shlex.quote(line)} && echo ==" for line in lines)
    found = ask(folder, "fish", "\n".join(asked))
    return [[line.partition("\t")[0] for line in part] for part in found]


def zsh(folder: Path, lines: list[str]) -> list[str]:
    """Type lines on a terminal, each with a Tab, and give what zsh made of them."""
    require("zsh")
    (folder / "_shardwright").write_text(script("zsh"))
    (folder / ".zshrc").write_text(
        "fpath=(~ $fpath)\nautoload -U compinit && compinit -u -D\n"
        'show() { print -r -- "$BUFFER" >> typed; BUFFER=; }\n'
        "zle -N show\nbindkey '^G' show\n: > typed\n"
    )
    ours, terminal = pty.openpty()
    typed = folder / "typed"
    with subprocess.Popen(
        ["zsh", "-i"],
        cwd=folder,
        env=environment(folder),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        try:
            os.write(ours, "".join(f"{line}\t\a" for line in lines).encode())
            deadline = time.monotonic() + 20
            while not typed.exists() or typed.read_text().count("\n") < len(lines):
                assert time.monotonic() < deadline, typed.read_text()
                if select.select([ours], [], [], 0.02)[0]:
                    os.read(ours, 4096)  # what it shows
        finally:
            process.kill()
            os.close(ours)
            os.close(terminal)
    return typed.read_text().splitlines()


def flags() -> dict[str, list[str]]:
    """List the flags of every command, as the parser knows them."""
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name: sorted(sub._option_string_actions) for name, sub in actions.choices.items()}


def test_bash_completes_commands_flags_words_and_paths(folder: Path) -> None:
    found = bash(folder, list(COMPLETED))
    assert found == [[word.removesuffix("/")] for word in COMPLETED.values()]


def test_bash_completes_every_command_and_every_flag(folder: Path) -> None:
    lines = ["shardwright ", *(f"shardwright {name} -" for name in flags())]
    found = bash(folder, lines)
    assert found[0] == [command.__name__.rpartition(".")[2] for command in COMMANDS]
    assert list(map(sorted, found[1:])) == list(flags().values())


def test_fish_completes_commands_flags_words_and_paths(folder: Path) -> None:
    assert fish(folder, list(COMPLETED)) == [[word] for word in COMPLETED.values()]


def test_zsh_completes_commands_flags_words_and_paths(folder: Path) -> None:
    found = zsh(folder, list(COMPLETED))
    expected = [f"{line.rpartition(' ')[0]} {word}" for line, word in COMPLETED.items()]
    assert [line.rstrip() for line in found] == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_commands_are_described_by_their_help_also_as_json(shell: str) -> None:
    told = json.loads(commands.run("completion", shell, "--json").stdout)
    assert told["shell"] == shell
    assert all(str(command.__doc__).partition(".\n")[0] in told["script"] for command in COMMANDS)


def test_words_that_are_completed_are_those_that_are_accepted() -> None:
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = {
        flag: action.type.texts
        for sub in actions.choices.values()
        for flag, action in sub._option_string_actions.items()
        if isinstance(action.type, Known)
    }
    assert (known["--encoders"], known["--fit"], known["--decode"]) == (SETS, FITS, DECODES)
    assert (known["--dtype"], known["--for"]) == (DTYPES, tuple(LOADERS))
