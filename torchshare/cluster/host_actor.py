"""The host of a device, an actor on Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.queue_state import QueueSettings
from torchshare.cluster.storage import Storage

if TYPE_CHECKING:
    from torchshare.cluster.host import HostReport


@dataclass(frozen=True)
class ClusterSettings:
    storage: str
    queue: QueueSettings = field(default_factory=QueueSettings)
    every: str | int = "5min"
    """How often jobs write checkpoints."""
    device: str = "auto"
    hosts_per_node: int = 1
    """On nodes without GPUs; on others, a host per GPU."""


class HostActor:
    """See Host. Imports torch in its own process only."""

    def __init__(self, settings: ClusterSettings) -> None:
        from ray import cloudpickle

        from torchshare.cluster.host import Host

        storage = Storage(Path(settings.storage))
        self._host = Host(storage, settings.device, settings.every, cloudpickle.dumps)

    def start(self, spec: JobSpec, attempt: int) -> None:
        self._host.start(spec, attempt)

    def stop(self, name: str, attempt: int, suspend: bool) -> None:
        self._host.stop(name, attempt, suspend=suspend)

    def report(self, forget: list[tuple[str, int]]) -> HostReport:
        return self._host.report(forget)

    def save_all(self) -> None:
        self._host.save_all()
