"""A pool of worker processes, which never outlive their parent.

An idle worker sees its pipe close, a busy one is killed by the kernel, so that no forgotten process
writes into a folder that a later run has locked.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from shardwright.errors import ShardwrightError

Task = TypeVar("Task")
Message = TypeVar("Message")

_DONE = "done"
_FAILED = "failed"
_SAID = "said"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Pool(Generic[Task, Message]):
    """Some processes that run one function; they start as tasks come."""

    def __init__(self, function: Callable[[Task], Iterator[Message]]) -> None:
        self.function = function
        self.processes: dict[Connection, BaseProcess] = {}

    def run(self, tasks: Iterator[Task], workers: int) -> Iterator[Message]:
        """Give each task to a worker that is free, and yield what they say."""
        for task in tasks:
            while len(self.processes) >= workers:
                idle, messages = self._listen()
                yield from messages
                if idle is not None:
                    idle.send(task)
                    break
            else:
                self._start().send(task)
        busy = len(self.processes)
        while busy:
            idle, messages = self._listen()
            yield from messages
            busy -= idle is not None

    def kill(self) -> None:
        """End all workers, whatever they are doing."""
        for connection, process in self.processes.items():
            process.kill()
            process.join()
            connection.close()

    def _start(self) -> Connection:
        # Fork, because with any other method a caller's script without a __main__ guard would run
        # again in every worker. Our workers only read and write files, so they need no lock that a
        # thread of the caller may hold.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(self.function, theirs, [ours, *self.processes], os.getpid()),
            daemon=True,
        )
        # A signal waits until the worker stands on its own: what the parent makes of it is not for
        # a worker to do, nor to be lost in the midst of a fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
            self.processes[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return ours

    def _listen(self) -> tuple[Connection | None, list[Message]]:
        """Wait for some worker: give its connection if it is idle now, and what it said."""
        connection = wait(list(self.processes))[0]
        assert isinstance(connection, Connection)
        try:
            kind, content = connection.recv()
        except EOFError:
            process = self.processes[connection]
            process.join()
            raise ShardwrightError(
                f"a worker process died (exit code {process.exitcode}); if the system killed it "
                "for memory, run again with fewer --workers"
            ) from None
        if kind == _FAILED:
            raise content
        return (connection, []) if kind == _DONE else (None, [content])


def _work(
    function: Callable[[Task], Iterator[Message]],
    connection: Connection,
    others: list[Connection],
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # and so is a lost session
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _die_with(parent)
    for other in others:  # the parent's ends: held open here, they would hide the parent's death
        other.close()
    with suppress(EOFError, BrokenPipeError):
        while True:
            task = connection.recv()
            try:
                for message in function(task):
                    connection.send((_SAID, message))
            except Exception as error:
                connection.send((_FAILED, error))
                return
            connection.send((_DONE, None))


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
