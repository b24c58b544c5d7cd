"""``python -m shardwright``, and where the ``shardwright`` command begins."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """Run one command and end the process; ``cli.main.main`` gives the exit code instead.

    An interrupt before the command has begun ends it like any later one.
    """
    try:
        from shardwright.cli.main import main as command

        code = command()
    except KeyboardInterrupt as interrupt:
        code = getattr(interrupt, "exit_code", 130)
    atexit._run_exitfuncs()  # libraries tidy up; no thread of ours is left
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed; or its failure is reported
            stream.flush()
    # To take down all modules costs seconds with torch, and some of its libraries report leaks.
    os._exit(code)


if __name__ == "__main__":
    main()
