"""A Ray cluster on this machine, for tests."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from conftest import wait_until
from ray.cluster_utils import Cluster

from torchshare import cluster
from torchshare.cluster.host_actor import NAMESPACE
from torchshare.cluster.settings import ClusterSettings, QueueSettings

NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
ALL_DONE_S = 120.0


class Local:
    """A Ray cluster of two nodes, with a scheduler."""

    def __init__(self, folder: Path, every: int = 1, **queue: Any) -> None:
        self.settings = ClusterSettings(str(folder / "storage"), QueueSettings(**queue), every=every, device="cpu")
        self.open()

    def open(self) -> None:
        self.ray = Cluster(initialize_head=True, head_node_args=NODE)
        ray.init(self.ray.address, log_to_driver=False, logging_level="ERROR")  # on the head's raylet
        self.add_node()
        cluster.up(self.ray.address, self.settings)

    def add_node(self) -> None:
        self.node = self.ray.add_node(**{key: NODE[key] for key in ("num_cpus", "object_store_memory")})

    def close(self) -> None:
        ray.shutdown()
        self.ray.shutdown()

    def wait_for_hosts(self, count: int = 2) -> None:
        wait_until(lambda: sum(host["up"] for host in cluster.hosts()) >= count)

    def journal(self) -> list[dict[str, Any]]:
        lines = Path(self.settings.storage, "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def pid(self, device: int) -> int:
        host = cluster.hosts()[device]
        actor = ray.get_actor(f"host-{host['node']}-{host['index']}", NAMESPACE)
        return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=30))


@contextlib.contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Local]:
    """With hosts on both nodes."""
    found = Local(folder, **settings)
    try:
        found.wait_for_hosts()
        yield found
    finally:
        found.close()


def submit(target: Callable[..., Any] | str, name: str, **options: Any) -> cluster.Handle:
    """Each has a model of its own: on a busy machine, a ratio that was measured would end the sharing."""
    return cluster.submit(target, name=name, model=name, threads=1, **options)


def is_running(job: cluster.Handle, steps: int = 1) -> Callable[[], bool]:
    return lambda: job.state == "running" and job.status()["steps"] >= steps
