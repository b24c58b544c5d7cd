"""``python -m shardwright``, and where the ``shardwright`` command begins."""

import gc
import sys


def main() -> int:
    """Run one command; an interrupt before it has begun ends it like any later one."""
    try:
        from shardwright.cli.main import main as command

        code = command()
        gc.freeze()  # all that is left ends with the process; to look it through takes longer
        return code
    except KeyboardInterrupt as interrupt:
        return getattr(interrupt, "exit_code", 130)


if __name__ == "__main__":
    sys.exit(main())
