"""The state of the jobs and hosts in a queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.learned import StepTimes

Span = tuple[str, int, float, float]  # a job, its device, from when, until when


@dataclass(frozen=True)
class Gone:
    """How a job, or a rank of it, has left its device."""

    state: str
    """suspended, finished, failed or cancelled; lost, with its host"""
    error: str = ""


@dataclass(eq=False)
class QueuedJob:
    spec: JobSpec
    number: int
    """The job's number in the live scheduler; -1 for a job that had ended when the journal was compacted."""
    submitted: float
    estimate: float = 0.0
    """Estimated duration alone, in seconds."""
    waits_for: dict[str, bool] = field(default_factory=dict)
    """The jobs that have yet to end before the policy is told of it, by name: whether each must finish."""
    has_entered: bool = False
    """Whether the policy has been told of it: it waits for no other, and has a place among those of its array."""
    wanted: tuple[int, ...] = ()
    """The devices that the policy has chosen."""
    wanted_split: int = 1
    """The number of sub-batches of its batches that the policy has chosen."""
    devices: tuple[int, ...] = ()
    """The devices that the job has, in the order of its ranks. A rank that has left keeps its device until all have."""
    gone: dict[int, Gone] = field(default_factory=dict)
    """The ranks that have left, by device, in this order."""
    split: int = 1
    """The number of sub-batches since its last start."""
    attempt: int = 0
    """Number of starts so far."""
    stopping: bool = False
    stopped: float = 0.0
    """Time at which it was told to stop."""
    cancelled: bool = False
    can_save: bool = False
    crashes: int = 0
    """Number of host processes that this job has crashed since its last new checkpoint."""
    is_suspect: bool = False
    """It may have crashed a host: it runs alone until it has written a checkpoint."""
    began: float = 0.0
    ran: float = 0.0
    """Seconds, without the current attempt."""
    steps: int = 0
    ended: float | None = None
    outcome: str = ""
    error: str = ""
    trouble: str = ""
    """What the job's host waits for, such as space on a disk."""
    step_times: StepTimes = field(default_factory=StepTimes)

    @property
    def state(self) -> str:
        if self.outcome:
            return self.outcome
        if self.devices:
            return "cancelling" if self.cancelled else "suspending" if self.stopping else "running"
        return "suspended" if self.attempt else "pending"

    def deadline_state(self, now: float) -> str | None:
        """ "open", "met" or "missed", at its end or now; None without a deadline. Only a job that has finished meets
        it."""
        if self.spec.deadline is None:
            return None
        if now - self.submitted > self.spec.deadline or self.outcome not in ("", "finished"):
            return "missed"
        return "met" if self.outcome else "open"

    @property
    def is_held(self) -> bool:
        """Whether it waits for a place in its array, of which only some jobs run at once."""
        return not (self.outcome or self.has_entered or self.waits_for)

    @property
    def env(self) -> str:
        return key_of(self.spec.env)

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a rank has left without finishing: then the other ranks have to stop."""
        return any(gone.state != "finished" for gone in self.gone.values())

    @property
    def has_failed_ranks(self) -> bool:
        return any(gone.state == "failed" for gone in self.gone.values())

    @property
    def is_elsewhere(self) -> bool:
        """Whether the job is not where, or not split as, the policy wants it."""
        return self.devices != self.wanted or (bool(self.devices) and self.split != self.wanted_split)

    @property
    def is_misplaced(self) -> bool:
        """Whether the job is elsewhere, and has not been told to leave yet."""
        return not self.stopping and (self.is_elsewhere or self.has_lost_ranks)

    def verdict(self) -> Gone:
        """How the job has left when all its ranks have. If one was lost, others may have failed for that reason."""
        for state in ("lost", "failed", "suspended", "cancelled"):
            for gpu, gone in self.gone.items():
                if gone.state == state:
                    is_own = state == "failed" and len(self.devices) > 1
                    return Gone(state, f"rank {self.devices.index(gpu)}: {gone.error}") if is_own else gone
        return Gone("finished")


@dataclass(eq=False)
class HostRecord:
    """A device of the cluster, and the process that has it."""

    node: str
    index: int
    token: str
    """Identifies the process."""
    env: str
    up: bool = True
    jobs: dict[str, QueuedJob] = field(default_factory=dict)
    """The jobs that run on the device."""
    replacing: bool = False
    heard: float = 0.0
    """Time of its last answer, or of its first contact."""


@dataclass(frozen=True)
class EndedJob:
    """A job that another one has waited for, as that job's host needs it."""

    name: str
    priority: str
    state: str
    error: str
    steps: int
    ran_s: float
    outcome: str
    """The name of its outcome in the storage."""


@dataclass(frozen=True)
class Action:
    """A call that the scheduler is to make to a host."""

    what: str
    """start, suspend, cancel, or replace: end the process, and start one with the `env` of the job."""
    gpu: int
    job: JobSpec
    attempt: int
    rank: int = 0
    split: int = 1
    """Sub-batches of its batches."""
    predecessors: tuple[EndedJob, ...] = ()


def key_of(env: dict[str, Any]) -> str:
    return json.dumps(env, sort_keys=True)


def deadlines_text(states: list[str]) -> str:
    """How many jobs have met or missed their deadlines, or may still meet them, by `QueuedJob.deadline_state`."""
    return f"Deadlines: {', '.join(f'{states.count(state)} {state}' for state in ('met', 'missed', 'open'))}"
