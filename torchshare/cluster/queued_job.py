"""The state of the jobs and hosts in a queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.learned import StepTimes

Span = tuple[str, int, float, float]  # a job, its device, from when, until when


@dataclass(eq=False)
class QueuedJob:
    spec: JobSpec
    number: int
    """In the live scheduler."""
    submitted: float
    wanted: int | None = None
    """The device where the policy wants it."""
    place: int | None = None
    """The device where it is."""
    attempt: int = 0
    """Of how many starts this is the last."""
    stopping: bool = False
    cancelled: bool = False
    can_save: bool = False
    crashes: int = 0
    began: float = 0.0
    ran: float = 0.0
    """Seconds, without the current attempt."""
    steps: int = 0
    ended: float | None = None
    outcome: str = ""
    error: str = ""
    step_times: StepTimes = field(default_factory=StepTimes)

    @property
    def state(self) -> str:
        if self.outcome:
            return self.outcome
        if self.place is not None:
            return "cancelling" if self.cancelled else "suspending" if self.stopping else "running"
        return "suspended" if self.attempt else "pending"

    @property
    def env(self) -> str:
        return key_of(self.spec.env)


@dataclass(eq=False)
class HostRecord:
    """A device of the cluster, and the process that has it."""

    node: str
    index: int
    token: str
    """Of the process."""
    env: str
    up: bool = True
    jobs: dict[str, QueuedJob] = field(default_factory=dict)
    """Those whose place it is."""
    replacing: bool = False


@dataclass(frozen=True)
class Action:
    """What the caller is to tell a host."""

    what: str
    """start, suspend, cancel, or replace: end the process, and start one with the `env` of the job."""
    gpu: int
    job: JobSpec
    attempt: int


def key_of(env: dict[str, Any]) -> str:
    return json.dumps(env, sort_keys=True)
