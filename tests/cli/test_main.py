"""The command line as a whole: help, versions, exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import shardwright
from shardwright.cli.main import COMMANDS
from tests import commands

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


def test_help_lists_every_command_and_exit_code() -> None:
    done = commands.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = [text.split()[0] for text in done.stdout.splitlines() if text.startswith("    ")]
    assert [name for name in listed if name in NAMES] == NAMES
    exit_codes = done.stdout.partition("exit status:")[2]
    for code in ("0", "1", "2", "3", "11", "12", "130", "143"):
        assert code in exit_codes


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command_has_an_example_and_its_exit_codes(name: str) -> None:
    done = commands.run(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    example = done.stdout.partition("example:\n")[2].splitlines()[0]
    assert example.startswith(f"  shardwright {name}")
    status = done.stdout.partition("exit status:\n")[2].splitlines()
    codes = [text.split()[0] for text in status if text.strip()]
    assert codes[0] == "0"
    assert {"1", "2"} <= set(codes)
    assert "--json" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_slip_in_a_flag_shows_the_flags_of_its_command() -> None:
    done = commands.run("pack", "--overwite")
    assert "--overwrite" in done.stderr
    assert done.stderr.endswith("shardwright pack: error: unrecognized arguments: --overwite\n")


def test_without_a_command_all_are_listed() -> None:
    assert commands.run().stderr == commands.run("--help").stdout


@pytest.mark.parametrize("flag", ["--version", "-v", "-V"])
def test_the_version_is_the_packages(flag: str) -> None:
    assert commands.run(flag).stdout == f"shardwright {shardwright.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("unknown",), ("pack", "--unknown")])
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    done = commands.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: shardwright")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: shardwright"),
        (("unknown",), "shardwright: error: argument COMMAND: invalid choice: 'unknown'"),
        (("pack", "--limit", "x"), "shardwright pack: error: argument --limit: invalid int value"),
        (("pack", "--over"), "shardwright pack: error: unrecognized arguments: --over"),
    ],
)
def test_wrong_usage_is_one_object_too(arguments: tuple[str, ...], message: str) -> None:
    done = commands.run(*arguments, "--json")
    assert done.returncode == 2
    told = json.loads(done.stdout)
    assert told["error"] == "UsageError"
    assert told["message"].startswith(message)
    assert done.stderr.startswith("usage: shardwright")


def test_an_error_of_the_system_is_one_object_too() -> None:
    name = "x" * 300  # longer than a name can be
    done = commands.run("verify", name, "--json")
    assert done.returncode == 1
    told = {"error": "StorageError", "message": f"{name}: File name too long"}
    assert json.loads(done.stdout) == told
    assert done.stderr == f"error: {told['message']}\n"


def test_an_error_that_cannot_be_written_still_has_its_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [*commands.COMMAND, "status", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_traceback_is_shown_only_when_asked_for(tmp_path: Path) -> None:
    plain = commands.run("pack", cwd=tmp_path)
    assert plain.returncode == 2
    assert plain.stderr.startswith("error: data/derived/approved_image_dataset.jsonl: no such file")
    assert len(plain.stderr.splitlines()) == 1
    debug = commands.run("pack", "--debug", cwd=tmp_path)
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr
    assert "InputMissingError" in debug.stderr
