"""What a host answers to the scheduler, whose process does not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttemptStatus:
    name: str
    attempt: int
    state: str
    """running, suspended, finished, failed or cancelled"""
    steps: int = 0
    """Steps of the whole training."""
    can_save: bool = False
    error: str = ""
    stops: bool = False
    """Whether the job was told to stop."""
    has_saved: bool = False
    """Whether this attempt has written a checkpoint."""
    trouble: str = ""
    """What the job waits for, such as space on a disk."""
    earlier_steps: int = 0
    """The part of `steps` that earlier attempts have done."""


@dataclass(frozen=True)
class HostStatus:
    token: str
    """Identifies the process."""
    time: float
    """Seconds on the host's monotonic clock."""
    jobs: list[AttemptStatus]
    env: str
    """The runtime_env of the process as JSON: a scheduler that was started again may not know it."""
    refusal: str = ""
    """Why the host can take no more jobs."""
    niceness: int = 0
    """Niceness of the process."""
