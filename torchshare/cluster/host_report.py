"""What a host tells the scheduler. Apart from it: the scheduler's process has no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobReport:
    name: str
    attempt: int
    state: str
    """running, suspended, finished, failed or cancelled"""
    steps: int = 0
    """Steps of the whole training."""
    can_save: bool = False
    error: str = ""
    stops: bool = False
    """Whether it was told to."""
    has_saved: bool = False
    """Whether it has written a checkpoint, in this attempt."""
    trouble: str = ""
    """What it waits for, other than its turn."""
    earlier_steps: int = 0
    """The part of `steps` that earlier attempts have done."""


@dataclass(frozen=True)
class HostReport:
    token: str
    """Identifies the process."""
    time: float
    """Seconds of the host's clock, which does not jump."""
    jobs: list[JobReport]
    env: str
    """The process's environment: a scheduler that was started again may not know it."""
    refusal: str = ""
    """Why the host can take no more jobs."""
    niceness: int = 0
    """The process's."""
