"""One start of a job on a host, and its status."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.queued_job import EndedJob
from torchshare.cluster.storage import Outcome, WrongStorage
from torchshare.context.errors import described
from torchshare.context.loop import Loop
from torchshare.context.results import ENDED
from torchshare.runtime.job import Job

log = logging.getLogger("torchshare")

FIRST_WAIT_S = 1.0  # before a write that a full disk prevented is tried again; doubled each time
_LONGEST_WAIT_S = 60.0
_POLL_S = 0.02


@dataclass(eq=False)
class Attempt:
    number: int
    spec: JobSpec
    job: Job | None = None
    outcome: Outcome | None = None
    stopped: bool = False
    suspends: bool = False
    """Whether it was stopped to go on later."""
    rank: int = 0
    split: int = 1
    """Sub-batches of its batches."""
    predecessors: tuple[EndedJob, ...] = ()
    awaited: dict[str, Outcome | None] = field(default_factory=dict)
    """The outcomes of these, by name, as far as they have one."""
    store: Any = None
    """The store of a gang's rendezvous, on its first rank."""
    trouble: str = ""
    """What it waits for; see AttemptStatus."""
    refusal: str = ""
    """Why its host can run no jobs."""

    @property
    def outcome_name(self) -> str:
        return self.spec.outcome_of(self.number, self.rank)

    @property
    def may_fail(self) -> bool:
        """Whether a failure counts for the job. It does not if it follows from the stop, or from another rank's."""
        return not self.suspends and not (self.stopped and self.spec.gpus > 1)

    def wait(self, seconds: float) -> None:
        """Waits for so long, or until the attempt is told to stop."""
        deadline = time.monotonic() + seconds
        while not self.stopped and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def patiently(self, what: str, step: Callable[[], None]) -> None:
        """Repeats a step that uses the storage, after growing waits, until it succeeds or the attempt is stopped."""
        wait = FIRST_WAIT_S
        while True:
            try:
                step()
            except OSError as error:
                self._has_trouble(f"{what}: {error}")
                if isinstance(error, WrongStorage):
                    self.refusal = str(error)  # the job continues on another host
            else:
                self.trouble = ""
                return
            self.wait(wait)
            if self.stopped:
                return
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def put_back(self, error: Exception) -> None:
        """Waits, longer at each attempt, before a job that a full disk has ended goes on from its checkpoint."""
        self._has_trouble(f"goes on from its checkpoint when the disk has space: {described(error)}")
        self.wait(min(FIRST_WAIT_S * 2.0 ** min(self.number, 10), _LONGEST_WAIT_S))

    def _has_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("job '%s': %s", self.spec.name, trouble)
        self.trouble = trouble

    def status(self) -> AttemptStatus:
        job, outcome = self.job, self.outcome
        steps = 0 if job is None else job.result.steps
        ended = self.stopped or outcome is not None if job is None else job.state in ENDED
        if not ended:
            return self._status_of_running(steps)
        if outcome is not None:
            return AttemptStatus(self.spec.name, self.number, outcome.state, steps, error=outcome.error)
        is_cancelled = job is None or (self.stopped and job.state == "finished")  # it could not write its outcome
        state = "suspended" if self.suspends else "cancelled" if is_cancelled else job.state  # type: ignore[union-attr]
        exception = None if job is None or self.suspends else job.result.exception
        error = self.trouble if exception is None else described(exception)
        return AttemptStatus(self.spec.name, self.number, state, steps, error=error)

    def _status_of_running(self, steps: int) -> AttemptStatus:
        loop = Loop() if self.job is None else self.job._context.loop
        return AttemptStatus(
            self.spec.name,
            self.number,
            "running",
            steps,
            can_save=loop.can_save and not loop.unwritten,
            stops=self.stopped,
            has_saved=loop.has_saved,
            earlier_steps=0 if self.job is None else self.job.result.earlier_steps,
            trouble=self.trouble or (f"no checkpoint can be written: {loop.unwritten}" if loop.unwritten else ""),
        )


def save(job: Job, patience: float) -> None:
    """Has the job write a checkpoint, and repeats that while the disk is full: its last steps would be lost."""
    deadline, wait = time.monotonic() + patience, FIRST_WAIT_S
    while True:
        job.save(max(0.0, deadline - time.monotonic()))
        if not job._context.loop.unwritten or job.state in ENDED or time.monotonic() + wait > deadline:
            return
        time.sleep(wait)
        wait *= 2


def end(job: Job, patience: float) -> None:
    """Cancels the job and waits for its end. Raises ValueError if it does not stop."""
    job.cancel()
    deadline = time.monotonic() + patience
    while job.state not in ENDED and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if job.state not in ENDED:
        raise ValueError(f"its attempt before had not stopped {patience:g} s after it was told to")
