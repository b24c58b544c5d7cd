"""Where tasks run: this process, or several on this machine."""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Message = TypeVar("Message")


class Engine(Protocol):
    """A place for tasks to run. Arrays and pixels never pass through it."""

    def run(
        self, function: Callable[[Task], Iterator[Message]], tasks: Iterable[Task]
    ) -> Generator[Message, None, None]:
        """Run the function on each task and yield what it yields, in the order it arrives.

        Tasks and messages are small and picklable; the function is one that can be imported. A
        task is taken from the iterable only when there is room for it. An error in a task is
        raised here, and ends the others; close the generator to end them early.
        """
        ...
