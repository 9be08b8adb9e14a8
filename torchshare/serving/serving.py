"""What the requests to one job have in common."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torchshare import _core
from torchshare.context import current, step_loop
from torchshare.context.errors import described
from torchshare.context.results import Requests, Times
from torchshare.isolation.interrupt import PATIENCE_S

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext
    from torchshare.serving.request import Request

log = logging.getLogger("torchshare")

ENDED = "the job has ended"
_CHECK_S = 0.05  # how often a job that ends looks for its cancellation


class Calls:
    """The calls of a job's served functions, by any thread; see Job.serve."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._in_flight: set[int] = set()
        self._is_over = False
        self.may_come = False
        """Whether there is a function to call."""

    def begin(self) -> bool:
        """Whether the job still answers."""
        with self._changed:
            if not self._is_over:
                self._in_flight.add(threading.get_ident())
            return not self._is_over

    def done(self) -> None:
        with self._changed:
            self._in_flight.discard(threading.get_ident())
            self._changed.notify_all()

    def threads(self) -> list[int]:
        """The threads that are in a call."""
        with self._changed:
            return sorted(self._in_flight)

    def end(self, job: JobContext) -> None:
        """Waits for the calls that have begun. Those of a cancelled job stop at their next op; one that runs none is
        left behind."""
        patience = PATIENCE_S
        with self._changed:
            self._is_over = True
            while self._in_flight and patience > 0:
                self._changed.wait(_CHECK_S)
                patience -= _CHECK_S if job.handle.cancel_requested else 0


class Serving:
    """What the loops and served functions of one job have in common."""

    def __init__(self, job: JobContext | None) -> None:
        """`job`: None in a program that torchshare does not run."""
        self.job = job
        self.process = os.getpid()
        self.name = "torchshare.requests" if job is None else f"job '{job.name}'"
        self.times = _core.RequestTimes()
        self.slo: str | None = None
        self._has_warned = False
        self._has_split = False
        self._open = 0
        """How many `begin_request` have no `end_request`."""
        self.calls = Calls()
        self.batches: weakref.WeakSet[Any] = weakref.WeakSet()
        """The RequestBatches that the program holds."""
        self.sources: dict[int, Any] = {}
        """What its loops read, by the source's id: what they have not taken, a requests._Waiting."""

    def promise(self, slo: str | None) -> None:
        """See Job.requests. Raises ValueError for one that is invalid or differs from an earlier one of the job."""
        if slo is None or slo == self.slo:
            return
        try:
            target = _core.LatencyTarget(slo)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.name}: {error}") from None
        if self.slo is not None:
            raise ValueError(f"{self.name}: slo must be the same for all its requests, got {slo!r} after {self.slo!r}")
        if self.job is not None and self.job.keeps_promises:
            self.job.handle.promise(target.quantile, target.limit)
        self.slo = slo
        self.times.promise(target.limit)

    def answered(self, arrived: int, taken: int) -> None:
        """Called when a request has its answer; times of `time.monotonic_ns`."""
        now = time.monotonic_ns()
        is_late = self.times.answered(arrived, taken, now)
        if self.job is not None:
            self.job.handle.answered(now - arrived, now - taken)
            self._say_if_lost(self.job, is_late)

    def given_up(self, arrived: int) -> None:
        """Called when the job finds a request that its client has cancelled."""
        now = time.monotonic_ns()
        is_late = self.times.gave_up(arrived, now)
        if self.job is not None:
            self.job.handle.given_up(now - arrived)
            self._say_if_lost(self.job, is_late)

    def _say_if_lost(self, job: JobContext, is_late: bool) -> None:
        """Warns, once, that the promise cannot be kept. A request in time changes nothing of that."""
        if is_late and not self._has_warned:
            kept = job.handle.latency()
            if kept is not None and kept.cannot_hold:
                self._has_warned = True
                log.warning(
                    "%s: slo %r cannot be held, even alone; lower jobs wait until it holds again", self.name, self.slo
                )

    def check_thread(self) -> None:
        if current.job() is not self.job:
            raise RuntimeError(
                f"{self.name}: its requests must be taken and answered in its own thread, while it runs, got thread "
                f"{threading.current_thread().name!r}: run the loop in the job's function, and the server in a thread"
            )

    def is_ending(self) -> bool:
        """Whether an error of the job's code may be one of the job: it is cancelled, or its device is lost."""
        if self.job is None:
            return False
        try:
            self.job.handle.check_device()
        except RuntimeError:
            return True
        return self.job.handle.cancel_requested

    def is_cancelled(self) -> bool:
        """Whether the job will answer nothing more. A script may, after its first Ctrl-C; a forked child is not the
        job."""
        job = self.job
        return job is not None and job.handle.cancel_requested and not job.is_ending and os.getpid() == self.process

    def waiting(self) -> AbstractContextManager[None]:
        """Around a wait for a request: lower jobs run."""
        return contextlib.nullcontext() if self.job is None else step_loop.in_input(self.job)

    def begin_request(self) -> None:
        """Called when the job's own thread has taken requests, or begins a call of a served function."""
        self._open += 1
        if self.job is not None:
            self.job.handle.set_answering(True)

    def end_request(self) -> None:
        self._open -= 1
        if self.job is not None and self._open == 0:
            self.job.handle.set_answering(False)

    def synchronize(self) -> None:
        if self.job is not None:
            self.job.handle.synchronize()

    def fail(self, requests: Iterable[Request], error: BaseException) -> None:
        for request in requests:
            if request._fail(error):
                self.times.failed()

    def unanswered(self, why: str) -> RuntimeError:
        """The error of a request that gets no answer."""
        return RuntimeError(f"{self.name}: a request was not answered: {why}")

    def leave_out(self, requests: Iterable[Request], why: str) -> None:
        for request in requests:
            if not request.done():
                self.fail([request], self.unanswered(why))

    def result(self) -> Requests:
        """What has been measured so far."""
        times = self.times
        latency, service, queued = map(Times.of, (times.latency, times.service, times.queued))
        return Requests(
            times.latency.count, times.failures, latency, service, queued, self.slo, times.late, times.given_up
        )

    def say_split(self, count: int, error: Exception) -> None:
        """Warns, once, that a batch of `count` requests failed with `error` and is answered one by one."""
        if not self._has_split:
            self._has_split = True
            why = described(error).partition("\n")[0]
            log.warning("%s: a batch of %d requests failed and is answered one by one, as each that fails will be: %s",
                        self.name, count, why)  # fmt: skip

    def end(self) -> None:
        """Called at the end of the job."""
        if self.job is not None:
            self.calls.end(self.job)
        self.tell_ended()
        self.sources.clear()

    def tell_ended(self) -> None:
        """Fails the requests that have come and are not answered."""
        for batch in list(self.batches):
            self.leave_out(batch.requests, ENDED)
        for waiting in list(self.sources.values()):
            self.leave_out(waiting.rest(), ENDED)


def serving_of(job: JobContext) -> Serving:
    if job.serving is None:
        job.serving = Serving(job)
        job.serving.promise(job.slo)
    found: Serving = job.serving
    return found
