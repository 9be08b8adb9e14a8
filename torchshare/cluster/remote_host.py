"""The scheduler's side of a host: its actor on Ray, and what is known of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchshare.cluster.host_actor import ClusterSettings, HostActor

NAMESPACE = "torchshare"
_MAX_REASON = 300  # characters


@dataclass(eq=False)
class RemoteHost:
    node: str
    index: int
    actor: Any
    replaced_for: str = ""
    """The job whose environment it was started with."""
    gpu: int | None = None
    token: str = ""
    report: Any = None
    """The report that was asked for."""
    asked: float = 0.0
    forget: list[tuple[str, int]] = field(default_factory=list)
    strays: dict[tuple[str, int], float] = field(default_factory=dict)
    """Jobs that should not be there, and since when that is known."""
    blamed: str = ""
    """The job that does not stop, for which the process is being ended."""
    niceness: int = 0
    error: str = ""
    """Why it is dead."""

    @property
    def note(self) -> str:
        """What its user may want to change."""
        if self.niceness <= 0:
            return ""
        return f"niceness {self.niceness}; Ray's own is 15: start it with RAY_worker_niceness=0"

    @property
    def is_reachable(self) -> bool:
        return bool(self.token) and self.gpu is not None and not self.blamed


@dataclass(frozen=True)
class FailedStart:
    """Why a host ended before its first report."""

    reason: str
    wait: float
    """Seconds until it is started again."""
    due: float


def start_actor(settings: ClusterSettings, node: str, index: int, mark: str, *, has_gpu: bool, env: str = "{}") -> Any:
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


def living_nodes() -> dict[str, int]:
    """The GPUs of each."""
    return {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}


def last_line(text: str) -> str:
    """The reason in Ray's message, without its advice, and without the module of an exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[-1].partition(" Some common causes")[0] if lines else ""
    return re.sub(r"^(?:\w+\.)+\w+: ", "", reason)[:_MAX_REASON]
