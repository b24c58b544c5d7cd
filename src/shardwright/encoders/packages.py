"""The packages that pretrained encoders need: whether they are there, and why one does not work.

transformers and diffusers import their parts late, and hide why that fails: a package that neither
needs, for example a torchvision of another torch, may be the cause.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from importlib import import_module

from shardwright.errors import MissingExtraError

_INSTALL = "run pip install '.[encode]' in the checkout of shardwright"


def require(
    packages: Iterable[str],
    who: str = "the pretrained encoders need",
    instead: str = "choose --encoders sketch",
) -> None:
    """Raise if a package is not installed, or does not work; say who needs it."""
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise broken(package, error) from error
            what = f"{who} {package} ({error})"
            raise MissingExtraError(what, fix=f"{_INSTALL}, or {instead}") from error
        except Exception as error:  # a library in C that does not fit raises anything
            raise broken(package, error) from error


def require_torch() -> None:
    """Raise if torch is missing, or is older than what our encoders set of it."""
    require(("torch",))
    from torch import __version__, backends

    if getattr(backends.cudnn, "conv", None) is None:
        what = f"the pretrained encoders need torch 2.9 or later, not {__version__}"
        raise MissingExtraError(what, fix=f"{_INSTALL}, or choose --encoders sketch")


def broken(library: str, error: BaseException) -> MissingExtraError:
    """Make the error for a library that cannot be imported, with the error that is the cause."""
    cause = _cause_of(error)
    what = f"{library} does not work ({type(cause).__name__}: {first_line(cause)})"
    fix = "--debug shows which package fails: install that one again, or uninstall it"
    return MissingExtraError(what, fix=f"{fix}; then {_INSTALL}")


def is_import(error: BaseException) -> bool:
    """Whether an exception comes from an import, and not from what was done with it."""
    cause = _cause_of(error)
    frames = traceback.walk_tb(cause.__traceback__)
    at_import = any(frame.f_code.co_name == "<module>" for frame, _ in frames)
    return isinstance(cause, ImportError) or at_import


def first_line(error: BaseException) -> str:
    """Give the first line of what an exception says."""
    return str(error).strip().partition("\n")[0]


def _cause_of(error: BaseException) -> BaseException:
    """Give the first of a chain of exceptions; but what the caller was handling is not a cause."""
    while (before := error.__cause__ or _import_before(error)) is not None:
        error = before
    return error


def _import_before(error: BaseException) -> BaseException | None:
    """Give the import that failed before another was tried instead."""
    tried = isinstance(error, ImportError) and not error.__suppress_context__
    return error.__context__ if tried and isinstance(error.__context__, ImportError) else None
