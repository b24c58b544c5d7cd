"""Where tasks run: this process, several on this machine, or a cluster.

An ``Engine`` is for work on cores: it gives each worker one task after the other. A
``DeviceEngine`` is for encoders: each worker has a device, loads its weights once, and draws tasks
itself, also ahead, so that its pipeline is never empty. A worker of it that dies is started again,
and its tasks are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from shardwright.engine.devices import Devices
    from shardwright.engine.pool import Death
    from shardwright.engine.ray import Cluster

Task = TypeVar("Task")
Message = TypeVar("Message")


class Done(Enum):
    """What a worker says when a task is finished; not passed on to the caller."""

    DONE = "done"


DONE: Final = Done.DONE


class DeviceLostError(Exception):
    """A device is gone while it was in use; its tasks can be done on another one."""


class Engine(Protocol):
    """A place for tasks to run. Arrays and pixels never pass through it."""

    def run(
        self,
        function: Callable[[Task], Iterator[Message]],
        tasks: Iterable[Task],
        instead: Callable[[Task, Death], Task] | None = None,
    ) -> Generator[Message, None, None]:
        """Run the function on each task and yield what it yields, in the order it arrives.

        Tasks and messages are small and picklable; the function is one that can be imported. A
        task is taken from the iterable only when there is room for it. An error in a task is
        raised here, and ends the others; close the generator to end them early.

        If a worker of this machine dies, ``instead`` gives the task to run in place of its own, of
        which some messages may have come; without it that is an error.
        """


# A place for encoders: of this machine, or of a cluster.
DeviceEngine: TypeAlias = "Devices | Cluster"
