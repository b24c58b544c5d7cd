"""``python -m shardwright``, and where the ``shardwright`` command begins."""

import os
import sys

from shardwright.starting import Quit


def main() -> None:
    """Run one command and end the process; also a signal while it starts ends it quietly."""
    # Not `signal`, which takes a while to import.
    import _signal as signal  # type: ignore[import-not-found]

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        for number in numbers:
            usual = signal.getsignal(number)
            if usual in (signal.SIG_DFL, signal.default_int_handler):  # else nohup has it ignored
                signal.signal(number, Quit(usual))
        import atexit

        from shardwright.cli.main import main as command

        code = command()
        for number in numbers:  # all is done
            if isinstance(signal.getsignal(number), Quit):
                signal.signal(number, signal.SIG_DFL)
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
