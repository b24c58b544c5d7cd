"""``python -m shardwright``, and where the ``shardwright`` command begins."""

import atexit
import os
import sys
from contextlib import suppress


def main() -> int:
    """Run one command; an interrupt before it has begun ends it like any later one."""
    ending: list[int] = []
    atexit.register(_end, ending)  # the first, so that it is the last to be called
    try:
        from shardwright.cli.main import main as command

        code = command()
    except KeyboardInterrupt as interrupt:
        code = getattr(interrupt, "exit_code", 130)
    ending.append(code)
    return code


def _end(ending: list[int]) -> None:
    """End the process at once: threads have ended, and libraries have tidied up.

    To take down all modules first costs seconds with torch, and what is then left over for any
    reason is reported as leaked by some of its libraries.
    """
    if not ending:  # an error that nobody foresaw, or help: Python knows the exit code
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed; or its failure is reported
            stream.flush()
    os._exit(ending[0])


if __name__ == "__main__":
    sys.exit(main())
