"""A queue of jobs on the devices of a Ray cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchshare.cluster.client import Handle, JobError, hosts, job, jobs, spans, submit, submit_array
    from torchshare.cluster.connection import connect, down, up
    from torchshare.cluster.settings import ClusterSettings, QueueSettings

__all__ = [
    "ClusterSettings",
    "Handle",
    "JobError",
    "QueueSettings",
    "connect",
    "down",
    "hosts",
    "job",
    "jobs",
    "spans",
    "submit",
    "submit_array",
    "up",
]

_MODULES = {
    "ClusterSettings": "settings",
    "QueueSettings": "settings",
    "connect": "connection",
    "down": "connection",
    "up": "connection",
}


def __getattr__(name: str) -> object:
    """Imported on first use: some of it needs Ray."""
    if name not in __all__:
        raise AttributeError(f"module 'torchshare.cluster' has no attribute '{name}'")
    return getattr(importlib.import_module(f"torchshare.cluster.{_MODULES.get(name, 'client')}"), name)
