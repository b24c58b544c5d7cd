"""What every public function has in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shardwright.interrupts import caught
from shardwright.progress import Progress
from shardwright.storage import files

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def entry(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function public: signals stop it safely, OSErrors become ours, progress is closed."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        progress: Any = kwargs.get("progress") or Progress()
        with files.explained(), caught(), closing(progress):
            return function(*args, **kwargs)

    return call
