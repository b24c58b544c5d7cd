"""A Ray cluster as an engine: for encoders on its GPUs, and for tasks on its cores.

``connect`` gives a ``Cluster``, which is what ``Devices`` is on one machine, and checks what its
nodes must have in common; its ``tasks`` is what ``Local`` is. Ray is imported only here and in
``nodes`` and ``actors``, when it is used.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import ClassVar, Generic

from shardwright import interrupts
from shardwright.engine import DONE, Done, Engine, Message, Task
from shardwright.engine.actors import Actors, Share
from shardwright.engine.local import Local, cores
from shardwright.engine.nodes import Nodes, Shared, living, require_readable, require_same
from shardwright.engine.pool import Death, WorkerDiedError, run_on
from shardwright.errors import MissingExtraError, ShardwrightError, UsageError
from shardwright.storage.urls import Location
from shardwright.validate import as_text, require_known

__all__ = ["Cluster", "Ray", "RayTasks"]

_DEVICE = re.compile(r"auto|cuda|cpu(?::([1-9]\d*))?")
_ANSWER = 10  # seconds for a cluster to answer
_STORE = 100 << 20  # bytes that a cluster of our own may hold of objects; we send few


@dataclass(frozen=True)
class Ray:
    """Which cluster to use, and what each worker gets of it.

    Without an address it is the running cluster (``RAY_ADDRESS``, or one on this machine), or else
    a new one of this machine alone. The device is ``cuda`` (one worker for each GPU, or for so many
    of them), ``cpu`` (one for each node, with all its cores), ``cpu:N`` (N in the cluster), or
    ``auto``: GPUs if there are any.
    """

    address: str | None = None
    device: str = "auto"
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            what = f"--device {self.device} cannot be used on a Ray cluster"
            raise UsageError(what, fix="give auto, cuda, cpu or cpu:N")
        gpus = self.gpus_per_worker
        if gpus is not None and not 0 < gpus < inf:
            raise UsageError("--gpus-per-worker must be more than 0")
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            what = f"--gpus-per-worker must be 1 or less, or an integer, not {gpus:g}"
            raise UsageError(what)
        if gpus is not None and self.device.startswith("cpu"):
            raise UsageError(f"--gpus-per-worker does not go with --device {self.device}")
        if self.address is not None and self.address.startswith("ray://"):
            fix = "run this command on a node of the cluster, with --ray-address HOST:PORT or auto"
            raise UsageError("Ray Client cannot be used", path=self.address, fix=fix)

    @contextmanager
    def connect(self, warn: Callable[[str], None]) -> Iterator[Cluster]:
        """Connect to the cluster, and check that all nodes have this version.

        What was connected before stays so. All workers of the block have ended when it ends.
        """
        with _connected(self.address), Nodes(warn) as nodes:
            yield Cluster(nodes, self._share(), warn)

    def _share(self) -> Share:
        nodes = living()
        if self.device == "cuda" or (self.device == "auto" and any(node.gpus for node in nodes)):
            # Ray shows a worker only its own GPUs, so the first is always its own.
            return Share("cuda:0", gpus=self.gpus_per_worker or 1)
        count = int(self.device.partition(":")[2] or 0)
        if not count:
            return Share("cpu")
        return Share("cpu", cpus=max(1, sum(node.cpus for node in nodes) // count), most=count)


def ray_of(
    engine: object, address: object, device: str = "auto", gpus_per_worker: object = None
) -> Ray | None:
    """Give the cluster that flags ask for; None for this machine."""
    require_known("--engine", engine, ("local", "ray"))
    for flag, given in (("--ray-address", address), ("--gpus-per-worker", gpus_per_worker)):
        if given is not None and engine != "ray":
            raise UsageError(f"{flag} without --engine ray", fix="add --engine ray")
    if engine != "ray":
        return None
    if gpus_per_worker is not None and not isinstance(gpus_per_worker, int | float):
        raise UsageError(f"--gpus-per-worker is {gpus_per_worker!r}", fix="give a number")
    where = None if address is None else as_text("--ray-address", address, "HOST:PORT or auto")
    return Ray(where, device, gpus_per_worker)


@contextmanager
def tasks_on(
    ray: Ray | None,
    workers: int | None,
    warn: Callable[[str], None],
    *,
    writes: Sequence[Location] = (),
    reads: Sequence[Location] = (),
) -> Iterator[Engine]:
    """Give the engine for tasks: processes here, or a cluster whose nodes see these places."""
    if ray is None:
        yield Local.of(workers)
        return
    if workers is not None:
        raise UsageError("--workers does not go with --engine ray, which uses all cores")
    with ray.connect(warn) as cluster:
        for folder in writes:
            cluster.require_shared(folder)
        cluster.require_readable(reads)
        yield cluster.tasks


@dataclass(frozen=True)
class Cluster:
    """A cluster that is connected: an engine of one worker for each device, as ``Devices`` is.

    Its nodes have the version of this program.
    """

    is_here: ClassVar = False

    nodes: Nodes
    share: Share
    warn: Callable[[str], None]

    @property
    def tasks(self) -> RayTasks:
        """Give its cores, for tasks; an ``Engine``."""
        return RayTasks(Cluster(self.nodes, Share("cpu"), self.warn))

    def require_same(self, what: str, function: Callable[[], object]) -> None:
        """Check that a function gives the same on all nodes as here: a digest of the recipe."""
        self.nodes.require(partial(require_same, what, function, function()))

    def require_shared(self, folder: Location) -> None:
        """Check that all nodes see a folder, or what will be one, and can write there."""
        self.nodes.require(Shared.of(folder.absolute()))

    def require_readable(self, paths: Sequence[Location]) -> None:
        """Check that all nodes have some files or folders."""
        self.nodes.require(partial(require_readable, [path.absolute() for path in paths]))

    @property
    def names(self) -> tuple[str, ...]:
        """Name the device of each worker that there is room for now; at least one."""
        count = sum(map(self.share.places, self.nodes.admitted.values()))
        return (self.share.device,) * max(1, min(count, self.share.most or count))

    @property
    def cores_each(self) -> int:
        """Count the cores that every worker has beside its device."""
        found = [self.share.cores(n) for n in self.nodes.admitted.values() if self.share.places(n)]
        return max(1, min(found, default=1))

    def run(
        self,
        function: Callable[[str, Iterator[Task]], Iterator[Message | Done]],
        tasks: Iterable[Task],
        instead: Callable[[Task, Death], Task | None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Generator[Message, None, None]:
        """Run the function once on each device, as ``Devices.run`` says.

        Nodes may come and go: those that join are used, and the tasks of those that are lost run
        elsewhere, without a call of ``instead``. If there is no device, this waits for one. A place
        where no worker starts is left out, with a warning, while there are others. Without
        ``instead``, a task that may have caused a death is run once more.
        """
        warn = warn or self.warn
        crew = Actors(self.nodes, self.share, warn)
        return run_on(crew, function, tasks, instead or _OnceMore[Task](), warn)


class _OnceMore(Generic[Task]):
    """Gives a task back, and raises if it may have caused a second death."""

    def __init__(self) -> None:
        self._suspected: list[Task] = []

    def __call__(self, task: Task, death: Death) -> Task:
        if any(task is other for other in self._suspected):
            raise death.error
        self._suspected.append(task)
        return task


@dataclass(frozen=True)
class RayTasks:
    """An engine for the cores of a cluster; see ``Engine``.

    The messages of a task come when it is finished: if its worker is lost before, they do not
    come twice.
    """

    cluster: Cluster

    def run(
        self,
        function: Callable[[Task], Iterator[Message]],
        tasks: Iterable[Task],
        instead: object = None,  # not here: a task that may have caused a death is run once more
    ) -> Generator[Message, None, None]:
        """Run each task on a core of some node."""
        finished: set[int] = set()
        with closing(self.cluster.run(_OnCores(function), enumerate(tasks))) as found:
            for number, messages in found:
                if number not in finished:  # else its worker was lost right after
                    finished.add(number)
                    yield from messages


@dataclass(frozen=True)
class _Numbered(Generic[Task, Message]):
    """Gives all that a function yields for a task together, with the number of the task."""

    function: Callable[[Task], Iterator[Message]]

    def __call__(self, task: tuple[int, Task]) -> Iterator[tuple[int, list[Message]]]:
        number, content = task
        yield number, list(self.function(content))


@dataclass(frozen=True)
class _OnCores(Generic[Task, Message]):
    """Runs tasks on all cores of a node."""

    function: Callable[[Task], Iterator[Message]]

    def __call__(
        self, device: str, tasks: Iterator[tuple[int, Task]]
    ) -> Iterator[tuple[int, list[Message]] | Done]:
        drawn: deque[int] = deque()
        ended: set[int] = set()

        def draw() -> Iterator[tuple[int, Task]]:
            for number, task in tasks:
                drawn.append(number)
                yield number, task

        try:
            for number, messages in Local(cores()).run(_Numbered(self.function), draw()):
                yield number, messages
                ended.add(number)
                while drawn and drawn[0] in ended:
                    ended.remove(drawn.popleft())
                    yield DONE
        except WorkerDiedError:
            os._exit(1)  # so the driver learns of a death, and deals with it


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one; end what was begun here."""
    from unittest.mock import patch  # for what Ray has no settings; here, to keep the start light

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray._private.worker as printing
        from ray._private import utils
    except ImportError as error:
        fix = "run pip install '.[ray]' in the checkout of shardwright"
        raise MissingExtraError(f"--engine ray needs ray ({error})", fix=fix) from error
    if ray.is_initialized():  # by the caller
        yield
        return
    with (
        # Or it prints to standard output what happens on other nodes; log_to_driver does not help.
        patch.object(printing, "_worker_logs_enabled", False),
        # Or it replaces our handler of SIGTERM by one that raises, also where that is ignored.
        patch.object(utils, "set_sigterm_handler", lambda _: None),
    ):
        try:
            with interrupts.kept(), interrupts.at_once(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of Ray, about its next versions
                _init(address or os.environ.get("RAY_ADDRESS"))
            yield
        finally:
            with interrupts.kept():
                ray.shutdown()


def _init(address: str | None) -> None:
    from unittest.mock import patch

    import ray
    from ray._private import ray_constants

    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != "local":
            try:
                _require_answer(address)
                ray.init(address or "auto", **quiet)
            except ConnectionError:
                if address is not None:
                    raise
                address = "local"
        if address == "local":
            # To listen on this machine only: Ray replaces a loopback address that it is given by
            # another one of the machine, but not with this setting, against questions of firewalls.
            with (
                patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False),
                patch.dict(os.environ, {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}),
            ):
                ray.init("local", object_store_memory=_STORE, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        text = " ".join(str(error).split())
        fix = "start a cluster with ray start --head, or give its --ray-address"
        if "auth" in text.lower():
            fix = "set RAY_AUTH_MODE=token here and on all nodes, with the token that the head has"
        raise ShardwrightError(f"cannot connect to Ray: {text}", fix=fix) from error


def _require_answer(address: str | None) -> None:
    """Raise ConnectionError if nobody answers at an address: Ray would try for minutes."""
    from ray._private.services import get_ray_address_from_environment

    found = address
    if address in (None, "auto"):
        found = get_ray_address_from_environment("auto", None)
    if not found:
        raise ConnectionError("there is no cluster")
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"nobody answers at {found} ({error})") from None
