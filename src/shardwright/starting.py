"""Signals while a command starts: nothing has begun yet, so it ends at once.

This is imported before anything else, so it imports nothing that takes a while.
"""

import os


class Quit:
    """A handler that ends the process, until ``interrupts.caught`` uses ``usual`` in its place.

    It raises nothing: what is raised while a class is made, or in C, becomes another error with a
    traceback.
    """

    def __init__(self, usual: object) -> None:
        self.usual = usual

    def __call__(self, number: int, frame: object) -> None:
        try:  # noqa: SIM105 - because contextlib would be imported too early
            os.write(2, b"Interrupted\n")
        except OSError:
            pass  # closed: the exit code remains
        os._exit(128 + number)
