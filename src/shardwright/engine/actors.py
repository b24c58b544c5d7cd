"""Workers on a Ray cluster: an actor for each, which starts its process and carries what it says.

The worker is a process of the actor and not the actor itself. So the actor lives to tell how it
died, as ``devices`` would; and if an actor dies, it is most often with its node, which is no fault
of a task. Only what workers and driver say goes through Ray, in batches; pixels never do.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue
from threading import Event, Lock, Thread
from typing import Any

from shardwright import interrupts
from shardwright.engine.devices import THREADS, Process
from shardwright.engine.local import CORES, DIED, KEPT_MEMORY, signals_blocked
from shardwright.engine.nodes import Node, Nodes, living, on_node
from shardwright.engine.pool import LOST, Ended, Seat

_LOOK = 2.0  # seconds until nodes are counted again
_SETTLE = 5.0  # seconds in which an actor that died may turn out to have died with its node
_FAREWELL = 5.0  # seconds for workers to be ended
_QUIET, _REMIND = 15.0, 60.0  # seconds without any worker until that is said, and said again
_BATCH = 256  # messages


@dataclass(frozen=True)
class Share:
    """What a worker gets of a node, and how many workers there may be."""

    device: str  # as the worker names it
    gpus: float = 0
    cpus: int | None = None  # all that the node has, shared by its workers
    most: int | None = None

    @property
    def needs(self) -> str:
        """Name what a worker waits for."""
        if self.gpus:
            return "a GPU" if self.gpus <= 1 else f"{self.gpus:g} GPUs"
        return "a CPU" if (self.cpus or 1) == 1 else f"{self.cpus} CPUs"

    def places(self, node: Node) -> int:
        """Count the workers that a node can have."""
        if self.gpus:
            return int(node.gpus / self.gpus + 1e-6)
        return max(1, node.cpus // self.cpus) if self.cpus and node.cpus else min(1, node.cpus)

    def cores(self, node: Node) -> int:
        """Count the cores of a node that each worker there has; 0 if there are too few."""
        return min(self.cpus or node.cpus, node.cpus // max(1, self.places(node)))


class Actors:
    """The workers of a run, by their places; a ``Crew``, as ``devices.Processes`` is."""

    grows = True

    def __init__(self, nodes: Nodes, share: Share, warn: Callable[[str], None]) -> None:
        import ray

        self.nodes, self.share, self.warn = nodes, share, warn
        self.places: dict[Seat, Node] = {}
        self.hosts: dict[Seat, Any] = {}  # actors
        self.heard: set[Seat] = set()  # those whose worker has said something
        self.settling: dict[Seat, tuple[float, Ended]] = {}
        self.answers: dict[Any, Seat] = {}  # by the references to them
        # Ray repeats nothing: the driver knows which task of a worker that died is to be suspected.
        self.actor = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=3)(Host)
        self.look_at, self.remind_at = 0.0, time.monotonic() + _QUIET

    def opened(self) -> Iterable[Seat]:
        if time.monotonic() < self.look_at:
            return []
        self.look_at = time.monotonic() + _LOOK
        self.nodes.look()
        for place, node in list(self.places.items()):
            if node.id not in self.nodes.admitted:
                self._close(place)
        opened, kind = [], self.share.device.partition(":")[0]
        for node in self.nodes.admitted.values():
            there = sum(each.id == node.id for each in self.places.values())
            for _ in range(self.share.places(node) - there):
                used = sum(not place.closed for place in self.places)
                if self.share.most is None or used < self.share.most:
                    place = Seat(self.share.device, f"{kind} of node {node.name}")
                    self.places[place] = node
                    opened.append(place)
        return opened

    def start(self, place: Seat) -> None:
        node = self.places[place]
        cores = self.share.cores(node)
        actor = self.actor.options(
            num_gpus=self.share.gpus, num_cpus=cores, scheduling_strategy=on_node(node)
        )
        self.hosts[place] = actor.remote(max(1, cores), os.getcwd())
        self._ask(place)

    def send(self, place: Seat, content: object) -> None:
        if place in self.hosts:
            answer = self.hosts[place].send.remote(pickle.dumps(content))
            self.answers[answer] = place

    def receive(self) -> Iterator[tuple[Seat, str, Any]]:
        for answer in self._arrived():
            if answer in self.nodes.asked:
                self.nodes.hear(answer)
                self.look_at = 0.0
            elif place := self.answers.pop(answer, None):
                yield from self._take(place, answer)
        yield from self._settled()
        self._remind()

    def stop(self, place: Seat) -> None:
        import ray

        if place in self.hosts:
            ray.kill(self.hosts[place])
            self._forget(place)
        self.settling.pop(place, None)
        if place.closed:
            self.places.pop(place, None)

    def close(self) -> None:
        import ray

        # The caller may release what no other run may write to: first, the workers are ended.
        ends = [self.hosts[place].end.remote() for place in self.heard if place in self.hosts]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=_FAREWELL)
        for place in list(self.hosts):
            self.stop(place)

    def _ask(self, place: Seat) -> None:
        self.answers[self.hosts[place].receive.remote()] = place

    def _arrived(self) -> list[Any]:
        import ray

        asked = [*self.answers, *self.nodes.asked]
        if not asked:
            time.sleep(interrupts.POLL)
            return []
        arrived, others = ray.wait(asked, timeout=interrupts.POLL)
        if arrived and others:
            arrived += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return list(arrived)

    def _take(self, place: Seat, answer: Any) -> Iterator[tuple[Seat, str, Any]]:  # noqa: ANN401
        import ray

        try:
            messages = ray.get(answer)
        except ray.exceptions.RayError as error:
            yield from self._broken(place, error)
            return
        if messages is None:  # it was sent
            return
        self._ask(place)
        self.heard.add(place)
        for message in messages:
            if isinstance(message, Ended):
                yield place, DIED, message
            else:
                yield place, *pickle.loads(message)

    def _broken(self, place: Seat, error: Exception) -> Iterator[tuple[Seat, str, Any]]:
        """Say whether an actor that does not answer was killed, or its node is lost."""
        from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

        text = str(error).strip()
        if isinstance(error, RayTaskError) or getattr(error, "actor_init_failed", False):
            ended = Ended(None, text.splitlines())
        elif isinstance(error, OutOfMemoryError) or "low on memory" in text:
            ended = Ended(None, ["Ray killed it because the memory of its node ran low"])
        elif isinstance(error, ActorDiedError) and not error.preempted:
            ended = Ended(None, ["its Ray actor died"])
        else:
            yield self._lost(place, "its node does not answer")
            return
        self._forget(place)
        self.settling[place] = time.monotonic() + _SETTLE, ended

    def _settled(self) -> Iterator[tuple[Seat, str, Any]]:
        if not self.settling:
            return
        alive = {node.id for node in living()}
        for place, (deadline, ended) in list(self.settling.items()):
            if self.places[place].id not in alive:
                del self.settling[place]
                yield self._lost(place, "its node is gone")
            elif time.monotonic() >= deadline:
                del self.settling[place]
                yield place, DIED, ended

    def _lost(self, place: Seat, why: str) -> tuple[Seat, str, Any]:
        self._close(place)  # another opens when the nodes are counted, if that node is still there
        return place, LOST, why

    def _close(self, place: Seat) -> None:
        place.closed = True
        if place not in self.hosts and place not in self.settling:
            self.places.pop(place, None)

    def _forget(self, place: Seat) -> None:
        self.hosts.pop(place, None)
        self.heard.discard(place)
        self.answers = {ref: of for ref, of in self.answers.items() if of is not place}

    def _remind(self) -> None:
        """Say what is missing, if there has been no worker for long."""
        now = time.monotonic()
        if self.heard or self.settling:
            self.remind_at = now + _QUIET
        elif now >= self.remind_at:
            self.remind_at = now + _REMIND
            has = "no node of the cluster has one"
            if self.hosts:
                names = ", ".join(dict.fromkeys(self.places[place].name for place in self.hosts))
                has = f"others use what node {names} has, or its workers are slow to start"
            self.warn(f"waiting for {self.share.needs}: {has}")


class Host:
    """The actor of a worker: it starts the worker's process, and carries what it says.

    Three threads call it: one waits in ``receive``, one may ``send``, and one may ``end`` it.
    """

    def __init__(self, cores: int, folder: str) -> None:
        with suppress(OSError):  # else no path that is used is relative to it
            os.chdir(folder)
        self._cores = cores
        self._said: Queue[bytes | Ended] = Queue(_BATCH)
        self._process: Process | None = None
        self._started, self._ending = Event(), Lock()
        Thread(target=self._carry, daemon=True).start()

    def receive(self) -> list[bytes | Ended]:
        """Wait until the worker says something; give all that it has said."""
        said = [self._said.get()]
        while len(said) < _BATCH and not self._said.empty():
            said.append(self._said.get())
        return said

    def send(self, data: bytes) -> None:
        """Send something to the worker; if it is dead, that is received next."""
        self._started.wait()
        if (process := self._process) is not None:
            with suppress(OSError):
                process.connection.send_bytes(data)

    def end(self) -> None:
        """End the worker, and wait until it has ended."""
        self._started.wait()
        with self._ending:
            if self._process is not None:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(self._process.pid, signal.SIGKILL)
                    os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def _carry(self) -> None:
        # All in one thread, because the kernel kills the process with the thread that started it.
        threads = dict.fromkeys(THREADS, str(self._cores))
        environment = threads | os.environ | KEPT_MEMORY | {CORES: str(self._cores)}
        try:
            with signals_blocked():
                process = self._process = Process.start(environment)
        except OSError as error:
            self._said.put(Ended(None, [f"its process did not start: {error.strerror}"]))
            return
        finally:
            self._started.set()
        with suppress(EOFError, OSError):  # OSError: it died in the middle of a message
            while True:
                self._said.put(process.connection.recv_bytes())
        with self._ending:  # from now on, the number may be that of another process
            ended, self._process = process.end(), None
        self._said.put(ended)
