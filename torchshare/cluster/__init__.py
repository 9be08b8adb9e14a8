"""Many jobs on many devices: simulated, or run on a Ray cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchshare.cluster.client import Handle, JobError, hosts, job, jobs, spans, submit
    from torchshare.cluster.connection import connect, down, up

__all__ = ["Handle", "JobError", "connect", "down", "hosts", "job", "jobs", "spans", "submit", "up"]


def __getattr__(name: str) -> object:
    """Imported on first use: the simulator needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'torchshare.cluster' has no attribute '{name}'")
    module = "connection" if name in ("connect", "down", "up") else "client"
    return getattr(importlib.import_module(f"torchshare.cluster.{module}"), name)
