"""``python -m shardwright``, and where the ``shardwright`` command begins."""

import os
import sys


def main() -> None:
    """Run one command and end the process; also an interrupt while it starts ends it quietly."""
    try:
        # Not `signal`, which takes a while to import. And not an exception: one that is raised
        # while a class is made, or in C, becomes another error with a traceback.
        import _signal as signal  # type: ignore[import-not-found]

        usual = signal.getsignal(signal.SIGINT)
        if usual is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        import atexit

        from shardwright.cli.main import main as command

        signal.signal(signal.SIGINT, usual)
        code = command()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done
        atexit._run_exitfuncs()  # of libraries; no thread of ours is left
    except KeyboardInterrupt as interrupt:
        code = getattr(interrupt, "exit_code", 130)
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - because contextlib would be imported too early
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed; or its failure is reported
    # A normal exit takes seconds with torch, and some of its libraries report leaks.
    os._exit(code)


if __name__ == "__main__":
    main()
