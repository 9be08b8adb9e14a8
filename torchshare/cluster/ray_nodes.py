"""The nodes of a Ray cluster, and the hosts there."""

from __future__ import annotations

import json
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchshare.cluster.host_actor import NAMESPACE, HostActor
from torchshare.cluster.job_queue import JobQueue
from torchshare.cluster.metrics import Metrics
from torchshare.cluster.remote_host import HostDied, HostUnavailable
from torchshare.cluster.settings import ClusterSettings


class RayNodes:
    """What a scheduler needs of Ray. Actors and references are Ray's."""

    def __init__(self) -> None:
        self._metrics = Metrics()

    def living(self) -> dict[str, int]:
        """The number of GPUs of each node."""
        return {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}

    def start(
        self, settings: ClusterSettings, node: str, index: int, mark: str, *, has_gpu: bool, env: str = "{}"
    ) -> Any:
        """Starts a host. Returns its actor; see HostActor."""
        resources = {"num_cpus": 0, "num_gpus": 1} if has_gpu else {"num_cpus": 1}
        actor = ray.remote(HostActor).options(
            name=f"host-{node}-{index}",
            namespace=NAMESPACE,
            lifetime="detached",  # survives the scheduler
            get_if_exists=env == "{}",
            max_restarts=0,  # a new process is a new host
            max_concurrency=8,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            runtime_env=json.loads(env),
            **resources,
        )
        return actor.remote(settings, env, mark)

    def kill(self, actor: Any) -> None:
        ray.kill(actor)

    def wait(self, answers: list[Any], timeout: float) -> list[Any]:
        """Waits for all of these answers. Returns those that have come."""
        return ray.wait(answers, num_returns=len(answers), timeout=timeout)[0] if answers else []

    def answer(self, reference: Any) -> Any:
        """Raises HostDied, and HostUnavailable if the host cannot be reached for now."""
        try:
            return ray.get(reference)
        except ActorUnavailableError:
            raise HostUnavailable from None
        except RayError as error:
            raise HostDied(str(error)) from None

    def publish(self, queue: JobQueue) -> None:
        self._metrics.update(queue)

    def end_scheduler(self) -> None:
        """Ends the process of the caller, an actor."""
        ray.kill(ray.get_runtime_context().current_actor)
