"""What every public function has in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shardwright.errors import UsageError
from shardwright.interrupts import caught
from shardwright.progress import Progress
from shardwright.storage import files

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def entry(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function public: signals stop it safely, OSErrors become ours, progress is closed.

    A switch must be a bool, because the string "no" would count as true.
    """
    switches = [name for name, kind in function.__annotations__.items() if kind == "bool"]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        progress: Any = kwargs.get("progress") or Progress()
        with files.explained(), caught(), closing(progress):
            for name in filter(kwargs.__contains__, switches):
                if not isinstance(kwargs[name], bool):
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag} is {kwargs[name]!r}", fix="give True or False")
            return function(*args, **kwargs)

    return call
