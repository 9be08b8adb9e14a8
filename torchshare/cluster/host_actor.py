"""The host of a device, an actor on Ray."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.queued_job import EndedJob
from torchshare.cluster.settings import ClusterSettings
from torchshare.cluster.storage import Storage

if TYPE_CHECKING:
    from torchshare.cluster.host_status import HostStatus

log = logging.getLogger("torchshare")

NAMESPACE = "torchshare"  # of the actors on Ray
SCHEDULER = "scheduler"  # the name of the scheduler's


class CannotStart(ValueError):
    """The scheduler cannot use its storage."""


class ShutDown(Exception):
    """The scheduler has been shut down; Ray has not ended its process yet."""


class HostActor:
    """Passes calls to its Host. Importing this module does not import torch."""

    def __init__(self, settings: ClusterSettings, env: str, mark: str) -> None:
        """`mark` is that of the scheduler, in the storage. Raises WrongStorage if it is not there."""
        from ray import cloudpickle
        from ray.util import get_node_ip_address

        from torchshare.cluster.host import Host

        storage = Storage(Path(settings.storage), mark)
        address = get_node_ip_address()
        self._host = Host(storage, settings.device, settings.every, cloudpickle.dumps, env, address)
        _log_crashes(storage.crash(self._host.token))

    def start(self, spec: JobSpec, attempt: int, rank: int, split: int, predecessors: tuple[EndedJob, ...]) -> None:
        self._host.start(spec, attempt, rank, split, predecessors)

    def stop(self, name: str, attempt: int, suspend: bool) -> None:
        self._host.stop(name, attempt, suspend=suspend)

    def status(self, forget: list[tuple[str, int]]) -> HostStatus:
        return self._host.status(forget)

    def save_all(self) -> None:
        self._host.save_all()


def _log_crashes(path: Path) -> None:
    from torchshare.runtime import crash_log

    try:
        path.parent.mkdir(exist_ok=True)
        crash_log.open_for(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    except OSError as error:
        log.warning("which job crashes this process will not be known: %s", error)
