"""A Ray cluster on this machine for tests: some nodes, which listen only here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray._private import ray_constants
from ray.cluster_utils import Cluster as Machines

from shardwright.interrupts import kept

SMALL = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
# That a node is gone is noticed in a second.
QUICK = {"health_check_period_ms": 300, "health_check_failure_threshold": 3}
# No processes beside the nodes.
BARE = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
APART = """
import json, os, sys, time
from ray._private.node import Node
from ray._private.parameter import RayParams
node = Node(RayParams(**json.loads(sys.argv[1])), head=False, spawn_reaper=False)
print("up", flush=True)
time.sleep(600)
"""


@contextmanager
def machines_of(*names: str) -> Iterator[Machines]:
    """Nodes with one core each; ``TEST_NODE`` is there the name of the node."""
    with pytest.MonkeyPatch.context() as patch, kept():  # a node replaces handlers of signals
        # Or Ray takes another address of this machine in place of the one that it is given.
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        machines = Machines()
        try:
            add(machines, names[0], _system_config=QUICK, **BARE)
            for name in names[1:]:
                add(machines, name, wait=False)
            machines.wait_for_nodes()
            yield machines
        finally:
            machines.shutdown()


def add(machines: Machines, name: str, **given: Any) -> Any:  # noqa: ANN401
    """Add a node, with one core if nothing else is said."""
    environment = {"TEST_NODE": name, **given.pop("env_vars", {})}
    return machines.add_node(node_name=name, env_vars=environment, **SMALL, **given)


@contextmanager
def joined(machines: Machines, name: str, **given: Any) -> Iterator[Any]:  # noqa: ANN401
    """Add a node that is there for a while."""
    node = add(machines, name, **given)
    try:
        yield node
    finally:
        if node in machines.worker_nodes:
            machines.remove_node(node)


@contextmanager
def apart(machines: Machines, name: str, folder: Path) -> Iterator[None]:
    """Add a node that has a folder of its own at this path, as another machine has; for root."""
    import json

    given = {
        "gcs_address": machines.address,
        "node_name": name,
        "num_cpus": 1,
        "min_worker_port": 0,
        "max_worker_port": 0,
        "node_manager_port": 0,
        "include_log_monitor": False,
        **SMALL,
    }
    mount = 'mount -t tmpfs none "$0" && exec "$@"'
    python = [sys.executable, "-c", APART, json.dumps(given)]
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", mount, str(folder), *python],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TEST_NODE": name},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield
        finally:
            process.terminate()
