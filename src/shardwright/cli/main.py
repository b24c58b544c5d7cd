"""The ``shardwright`` command: finds the subcommand, runs it, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import shardwright
from shardwright.cli import (
    build,
    completion,
    demo,
    derive,
    index,
    look,
    migrate,
    pack,
    recipe,
    status,
    verify,
)
from shardwright.cli.options import declare
from shardwright.cli.printing import call, print_json, say, shown_lines
from shardwright.errors import ShardwrightError, UsageError

COMMANDS = (demo, recipe, build, derive, migrate, status, pack, verify, look, index, completion)

EPILOG = """\
exit status:
  0    done
  1    failed
  2    wrong usage, or an input is missing
  3    done, but some inputs failed
  11   another run is writing to the same folder
  12   verify found damage
  130  interrupted (terminated: 143, hung up: 129)
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors can be printed as JSON too."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UsageError(f"{self.prog}: error: {message}")

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as argparse
        if file is sys.stdout:
            say(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = _Parser(
        prog="shardwright",
        description=shardwright.__doc__.splitlines()[0] if shardwright.__doc__ else None,
        epilog=EPILOG,
        formatter_class=formatter,
    )
    version = f"shardwright {shardwright.__version__}"
    top.add_argument("-v", "-V", "--version", action="version", version=version)
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        # The docstring of a command is its manual: what it does, examples, exit codes.
        summary, _, manual = (command.__doc__ or "").partition("\n\n")
        description, begin, examples = manual.partition("\n\n  shardwright ")
        sub = subparsers.add_parser(
            name,
            help=summary.rstrip("."),
            description=description,
            epilog="example:" + begin[1:] + examples,
            formatter_class=formatter,
            allow_abbrev=False,  # a typing mistake must not become --overwrite
        )
        function = getattr(shardwright, name) if name in shardwright.__all__ else None
        declare(sub, command.FLAGS, function)
        sub.add_argument("--json", action="store_true", help="print one JSON object, and only that")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(module=command, parser=sub, hints=getattr(command, "HINTS", {}))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as we run
    for stream in (sys.stdout, sys.stderr):  # an id may have characters the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    try:
        options = _parse(given)
    except UsageError as error:
        return _failed(error, str(error), 2, as_json)
    try:
        return _run(options)
    except ShardwrightError as error:
        if options.debug:
            raise
        return _failed(error, str(error), error.exit_code, as_json, "error: ")
    except KeyboardInterrupt as interrupt:
        notes = getattr(interrupt, "__notes__", [])  # how to continue
        code = getattr(interrupt, "exit_code", 130)
        return _failed(interrupt, "; ".join(["Interrupted", *notes]), code, as_json)
    except OSError as error:  # of printing
        if options.debug:
            raise
        where = error.filename or "standard output"
        return _failed(error, f"{where}: {error.strerror}", 1, as_json, "error: ")


def _run(options: argparse.Namespace) -> int:
    """Call the function of a command and print its summary, unless the command runs by itself."""
    command: Any = options.module
    if hasattr(command, "run"):
        code: int = command.run(options)
        return code
    summary = call(getattr(shardwright, options.command), options, command.describe)
    return command.exit_code(summary) if hasattr(command, "exit_code") else 0


def _parse(given: Sequence[str]) -> argparse.Namespace:
    """Read the arguments, or raise UsageError."""
    top = parser()
    options, unknown = top.parse_known_args(given)
    if options.command is None:
        raise UsageError(top.format_help().rstrip())
    for flag in (word.partition("=")[0] for word in unknown):
        if flag in options.hints:
            options.parser.error(f"no {flag} here: {options.hints[flag]}")
    if unknown:  # here, so that the usage shown is that of the command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _failed(error: BaseException, message: str, code: int, as_json: bool, prefix: str = "") -> int:
    """Print why there is no result, for people and also as JSON if asked for."""
    with suppress(OSError):  # if it cannot be printed, the exit code remains
        print(prefix + shown_lines(message), file=sys.stderr, flush=True)
    if as_json:
        with suppress(OSError):
            print_json({"error": type(error).__name__, "message": message})
    return code
