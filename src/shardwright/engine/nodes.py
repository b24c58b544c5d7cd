"""The nodes of a Ray cluster that may be used: they have the same program, and see the same files.

Those of the start must pass every check. One that joins later is checked too, and not used if it
fails.
"""

from __future__ import annotations

import pickle
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from shardwright import interrupts
from shardwright.errors import InputMissingError, ShardwrightError, StorageError
from shardwright.layout import STATE_FOLDER
from shardwright.storage import files
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.version import __version__

_PATIENCE = 120  # seconds for a node to answer
_PYTHON = ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True)
class Node:
    """A machine of a cluster, and what Ray may give away of it."""

    id: str
    name: str
    cpus: int
    gpus: float


Check: TypeAlias = Callable[[str], None]  # raises ShardwrightError; on the node of this name


def require_same(what: str, function: Callable[[], object], expected: object, node: str) -> None:
    """Raise if a function does not give on a node what it gives here."""
    if (found := function()) != expected:
        what = f"node {node} has another {what} ({found}) than the driver ({expected})"
        fix = "install the same versions of all packages on all nodes"
        raise ShardwrightError(what, fix=fix)


def require_readable(paths: Sequence[Location], node: str) -> None:
    """Raise if files or folders are not on a node."""
    for path in paths:
        with files.explained(path):  # it may not be allowed to look
            found = path.exists()
        if not found:
            what, fix = f"is not on node {node}", place_at(path).fix_if_unseen
            raise InputMissingError(what, path=path, fix=fix)


@dataclass(frozen=True)
class Shared:
    """A folder is the same one on each node, and can be written to there.

    If it does not exist yet, the nearest above it is.
    """

    folder: Location
    file: Location  # in it, for as long as nodes are asked

    @classmethod
    def of(cls, folder: Location) -> Self:
        """Choose a name for the file, where it does no harm if it stays after a kill."""
        there = place_at(folder).nearest(STATE_FOLDER)
        return cls(folder, there / f".shardwright-probe-{uuid.uuid4().hex}")

    @contextmanager
    def here(self) -> Iterator[None]:
        """Prepare it in the driver, for as long as nodes are asked."""
        try:
            files.write(self.file, b"")
            yield
        finally:
            files.remove(self.file)

    def __call__(self, node: str) -> None:
        mine = self.file.parent / f"{self.file.name}-{uuid.uuid4().hex}"
        try:
            with files.explained(self.file):
                if not self.file.exists():
                    what = f"only the driver sees this folder, node {node} does not"
                    fix = place_at(self.folder).fix_if_unseen
                    raise ShardwrightError(what, path=self.folder, fix=fix)
            files.write(mine, b"")
            files.remove(mine)
        except StorageError as error:
            what = f"node {node} cannot write to this folder ({error.what})"
            fix = "let the user and the credentials of Ray on that node write there"
            raise StorageError(what, path=self.folder, fix=fix) from error


class Nodes:
    """The nodes that may be used, and those that are asked whether they may."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.admitted: dict[str, Node] = {}
        self.asked: dict[Any, Node] = {}  # by the references to their answers
        self._refused: set[str] = set()
        self._checks: list[Check] = []
        self._prepared = ExitStack()

    def __enter__(self) -> Self:
        self.look()
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._prepared.close()

    def require(self, check: Check) -> None:
        """Check all nodes now, and later those that join."""
        self._checks.append(check)
        with _prepared(check):
            for node in self.admitted.values():
                self._ask(node, [check])
            self._wait()

    def look(self) -> None:
        """Forget the nodes that are gone, and ask those that have joined."""
        alive = {node.id: node for node in living()}
        self.admitted = {known: node for known, node in self.admitted.items() if known in alive}
        known = {*self.admitted, *self._refused, *(node.id for node in self.asked.values())}
        if joined := [node for node in alive.values() if node.id not in known]:
            for check in self._checks:
                self._prepared.enter_context(_prepared(check))
            for node in joined:
                self._ask(node, self._checks)

    def hear(self, answer: Any) -> None:  # noqa: ANN401
        """Take an answer: the node may be used, or a warning says why not."""
        node = self.asked[answer]
        try:
            self._take(answer)
        except ShardwrightError as error:
            self._refused.add(node.id)
            self.warn(f"node {node.name} is not used: {error}")
        if not self.asked:
            self._prepared.close()

    def _ask(self, node: Node, checks: Sequence[Check]) -> None:
        import ray

        ask = ray.remote(num_cpus=0, max_retries=0)(_question()).options(
            scheduling_strategy=on_node(node)
        )
        self.asked[ask.remote(node.name, __version__, _PYTHON, pickle.dumps(checks))] = node

    def _wait(self) -> None:
        """Take all answers; raise if a node may not be used."""
        import ray

        deadline = time.monotonic() + _PATIENCE
        try:
            while self.asked:
                interrupts.check()
                for answer in ray.wait(list(self.asked), timeout=interrupts.POLL)[0]:
                    self._take(answer)
                if self.asked and time.monotonic() > deadline:
                    names = ", ".join(node.name for node in self.asked.values())
                    what = f"no answer for {_PATIENCE} seconds from node {names}"
                    raise ShardwrightError(what, fix="check it with ray status, and see its logs")
        finally:
            self.asked.clear()  # what the others would answer is about files that go now
            self._prepared.close()

    def _take(self, answer: Any) -> None:  # noqa: ANN401
        import ray

        node = self.asked.pop(answer)
        try:
            version, python, error = ray.get(answer)
        except ray.exceptions.RayTaskError as failed:
            raise ShardwrightError(
                f"node {node.name} cannot be checked: {failed.cause}"
            ) from failed
        except ray.exceptions.RayError:  # it is gone again
            self.admitted.pop(node.id, None)
            return
        if (version, python) != (__version__, _PYTHON):
            has = f"shardwright {version}" if version else "no shardwright"
            what = (
                f"node {node.name} has {has} with Python {python}, "
                f"the driver has shardwright {__version__} with Python {_PYTHON}"
            )
            raise ShardwrightError(what, fix="install the same versions on all nodes")
        if error is not None:
            raise error
        self.admitted[node.id] = node


def _prepared(check: Check) -> AbstractContextManager[None]:
    return check.here() if isinstance(check, Shared) else nullcontext()


def living() -> list[Node]:
    """List the nodes that have something to work with."""
    import ray

    found = []
    for node in ray.nodes():
        cpus, gpus = (node["Resources"].get(kind, 0) for kind in ("CPU", "GPU"))
        if node["Alive"] and (cpus >= 1 or gpus):
            found.append(Node(node["NodeID"], node["NodeName"], int(cpus), gpus))
    return found


def on_node(node: Node) -> Any:  # noqa: ANN401
    """Give the strategy by which Ray starts something on a node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _question() -> Callable[..., Any]:
    """Give what runs on a node to check it.

    It is sent as code, because another version may be there, or none.
    """

    def answer(node: str, version: str, python: str, checks: bytes) -> tuple[Any, ...]:
        import pickle
        import platform

        here = ".".join(platform.python_version_tuple()[:2])
        try:
            from shardwright.version import __version__ as found
        except ImportError:
            return None, here, None
        if (found, here) == (version, python):
            from shardwright.engine.local import portable

            try:
                for check in pickle.loads(checks):
                    check(node)
            except Exception as error:
                return found, here, portable(error)
        return found, here, None

    return answer
