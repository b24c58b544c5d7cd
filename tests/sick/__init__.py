"""Images that cannot be read, and those that kill: commands run with a stand-in for a plug-in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.commands import run

DEADLY = b"a deadly picture"  # how a picture begins that kills its process when it is opened,
PIXELS = b"deadly pixels"  # and one that kills it when it is decoded
_HERE = Path(__file__).parent


def sick(
    failing: Path, *arguments: str | Path, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``shardwright``; images for which a file of their name is in a folder cannot be read."""
    return run(*arguments, cwd=cwd, PYTHONPATH=str(_HERE), FAILING=str(failing))


def fail(failing: Path, number: int, *images: str, readable: int | None = None) -> None:
    """Have images fail with an error of the system, until ``failing`` no longer lists them.

    So does opening them, or else reading more than the first ``readable`` bytes.
    """
    failing.mkdir(exist_ok=True)
    for name in images:
        (failing / name).write_text(str(number) + (f" {readable}" if readable else ""))
