"""The scheduler as an actor on Ray."""

from __future__ import annotations

import threading

import ray

from torchshare.cluster.ray_nodes import RayNodes
from torchshare.cluster.scheduler import Scheduler
from torchshare.cluster.settings import ClusterSettings


class SchedulerActor(Scheduler):
    """Ray starts it again after a crash."""

    def __init__(self, settings: ClusterSettings) -> None:
        is_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        super().__init__(settings, RayNodes(), is_restarted=is_restarted)
        threading.Thread(target=self.run, daemon=True).start()
