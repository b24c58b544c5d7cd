"""The public surface: what ``__all__`` says, no more and no less."""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

import shardwright
from shardwright import errors
from shardwright.cli.main import COMMANDS, parser

STAR = """
from shardwright import *
print(*sorted(name for name in globals() if name == "__version__" or not name.startswith("_")))
"""


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_exactly_what_a_fresh_import_gives() -> None:
    assert run(STAR).split() == sorted(shardwright.__all__)
    assert len(set(shardwright.__all__)) == len(shardwright.__all__)


def test_what_is_not_public_is_not_there() -> None:
    shown = {
        name
        for name, value in vars(shardwright).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert shown <= set(shardwright.__all__)
    with pytest.raises(AttributeError, match="module 'shardwright' has no attribute 'Catalog'"):
        shardwright.Catalog  # type: ignore[attr-defined]  # noqa: B018


def test_every_module_can_be_imported_by_its_name() -> None:
    found = pkgutil.walk_packages(shardwright.__path__, "shardwright.")
    names = [module.name for module in found if module.name != "shardwright.__main__"]
    assert "shardwright.encoders.contract" in names
    lines = [f"import {name} as m; assert m.__name__ == {name!r}, {name!r}" for name in names]
    run("\n".join(["from shardwright import *", *lines]))


def public_methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_help_of_a_dataset_shows_what_a_user_calls() -> None:
    assert public_methods(shardwright.Dataset) == {
        *("batches", "bucket", "buckets", "by_id", "column", "components", "empty"),
        *("field_names", "fields"),
    }
    assert public_methods(shardwright.Batches) == {
        *("load_state_dict", "set_epoch", "state_dict", "torch"),
    }
    for kind in (shardwright.Dataset, shardwright.Batches):
        for name in public_methods(kind):
            assert inspect.getdoc(getattr(kind, name)), name


def test_every_public_name_is_documented() -> None:
    for name in shardwright.__all__:
        value = getattr(shardwright, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def exceptions() -> list[type[Exception]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    ]


def test_one_class_catches_every_error() -> None:
    assert len(exceptions()) > 5
    for error in exceptions():
        assert issubclass(error, errors.ShardwrightError)
        assert getattr(shardwright, error.__name__) is error


def test_the_tree_of_errors_is_drawn_with_exit_codes() -> None:
    drawn = {
        words[0]: words
        for line in (errors.__doc__ or "").splitlines()
        if "exit" in (words := line.strip(" ├└│─").split())
    }
    assert drawn.keys() == {error.__name__ for error in exceptions()}
    for error in exceptions():
        words = drawn[error.__name__]
        assert words[words.index("exit") + 1] == str(vars(error).get("exit_code", 1))
        for base in error.__bases__:
            if base.__module__ == "builtins" and base is not Exception:
                assert f"({base.__name__})" in words


def functions() -> list[str]:
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    return [name for name in names if name in shardwright.__all__]


def command(name: str) -> argparse.ArgumentParser:
    choices = [action.choices for action in parser()._actions]
    (subparsers,) = (found for found in choices if isinstance(found, dict))
    found = subparsers[name]
    assert isinstance(found, argparse.ArgumentParser)
    return found


@pytest.mark.parametrize("name", functions())
def test_a_commands_flags_are_its_functions_arguments(name: str) -> None:
    flags = {action.dest: action for action in command(name)._actions}
    for common in ("help", "json", "debug"):
        del flags[common]
    arguments = inspect.signature(getattr(shardwright, name)).parameters
    assert flags.keys() == arguments.keys() - {"progress"}
    for argument, action in flags.items():
        if action.option_strings:
            assert arguments[argument].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", functions())
def test_a_commands_defaults_are_its_functions_defaults(name: str) -> None:
    parsed = command(name)
    for argument, value in inspect.signature(getattr(shardwright, name)).parameters.items():
        if argument != "progress" and value.default is not value.empty:
            assert (parsed.get_default(argument) or None) == (value.default or None), argument


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [
        (shardwright.derive, "batch_size", "8"),
        (shardwright.pack, "shard_size", 10.0),
        (shardwright.pack, "limit", "5"),
        (shardwright.pack, "progress_every", None),
        (shardwright.pack, "workers", 2.0),
        (shardwright.pack, "limit", True),
    ],
)
def test_a_number_of_the_wrong_type_is_refused_by_name(
    call: Callable[..., object], argument: str, value: object
) -> None:
    flag = f"--{argument.replace('_', '-')}"
    with pytest.raises(shardwright.UsageError, match=f"^{flag} is {value!r}; give an integer"):
        call(**{argument: value})


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [
        (partial(shardwright.derive, "images"), "dry_run", "no"),
        (shardwright.migrate, "backup", 0),
        (shardwright.pack, "shuffle", "no"),
        (shardwright.pack, "overwrite", "yes"),
        (shardwright.pack, "ignore_space", "yes"),
        (partial(shardwright.derive, "images"), "ignore_space", 1),
        (shardwright.verify, "read_data", None),
        (shardwright.index, "remove", "no"),
    ],
)
def test_a_switch_is_true_or_false(
    call: Callable[..., object], argument: str, value: object
) -> None:
    flag = f"--{argument.replace('_', '-')}"
    with pytest.raises(shardwright.UsageError, match=f"^{flag} is {value!r}; give True or False"):
        call(**{argument: value})


def test_a_seed_of_the_wrong_type_is_refused_where_it_is_used() -> None:
    with pytest.raises(shardwright.UsageError, match=r"^--seed is 'x'; give an integer"):
        shardwright.pack(shuffle=True, seed="x")  # type: ignore[arg-type]
