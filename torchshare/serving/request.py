"""Requests, and what answers several of them at once."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from torchshare import _core
from torchshare.context import current, step_loop
from torchshare.context.results import Requests, Times
from torchshare.training import pytree
from torchshare.training.batches import map_rows

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext


log = logging.getLogger("torchshare")

_ENDED = "the job has ended"
_CHECK_S = 0.05  # how often a job that ends looks for its cancellation
_PATIENCE_S = 1.6  # as long as Runtime.close waits


class Request:
    """What a client asks of a job; see `Job.requests`. It arrives when it is made. Any thread."""

    def __init__(self, data: Any) -> None:
        self.data = data
        """For batches of requests: tensors as a loader yields them, with rows as their first dimension."""
        self._arrived = time.monotonic_ns()
        self._answer: Future[Any] = Future()

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the answer, `timeout` seconds at most.

        Raises:
            TimeoutError: if there is none by then.
            Exception: what the job failed the request with; RuntimeError if the job ended before it answered.
        """
        return self._answer.result(timeout)

    def done(self) -> bool:
        """Whether it has an answer or an error."""
        return self._answer.done()

    def cancel(self) -> None:
        """The answer is not wanted any more. A request that waits is left out."""
        self._answer.cancel()

    def _give(self, answer: Any) -> bool:
        given = not self._answer.done() and self._answer.set_running_or_notify_cancel()
        if given:
            self._answer.set_result(answer)
        return given

    def _fail(self, error: BaseException) -> bool:
        failed = not self._answer.done() and self._answer.set_running_or_notify_cancel()
        if failed:
            self._answer.set_exception(error)
        return failed


class RequestBatch:
    """Requests that a job answers together; one, unless `Job.requests` was given a `max_batch`. In the job's thread.
    If a program drops it without an answer, its requests fail."""

    def __init__(self, serving: Serving, requests: Sequence[Request], rows: Sequence[int]) -> None:
        self._serving = serving
        self._rows = rows
        self._began = time.monotonic_ns()
        self.requests = requests
        self.data = requests[0].data if len(requests) == 1 else _joined([each.data for each in requests])
        """The data of one request, or that of all, joined along the first dimension of each tensor."""
        serving.open.add(self)

    @property
    def rows(self) -> int:
        """Rows of the requests; 1 for each that has no tensors."""
        return sum(self._rows)

    def answer(self, output: Any) -> None:
        """Gives each request its rows of `output`, which has as many rows as `data`; a single request gets all of it.
        Waits until the device has computed it.

        Raises:
            ValueError: if there are several requests, and a tensor of the output has another number of rows.
        """
        self._serving.check_thread()
        answers = [output] if len(self.requests) == 1 else self._split(output)
        self._serving.synchronize()
        for request, answer in zip(self.requests, answers, strict=True):
            if request._give(answer):
                self._serving.answered(request._arrived, self._began)

    def fail(self, error: BaseException) -> None:
        """Gives each request that has no answer this error, which `Request.result` raises."""
        self._serving.check_thread()
        self._serving.fail(self.requests, error)

    def __del__(self) -> None:
        self._serving.leave_out(self.requests, "it was dropped")

    def _split(self, output: Any) -> list[Any]:
        for path, tensor in pytree.tensors(output, "the answer"):
            if tensor.size(0) != self.rows:
                raise ValueError(
                    f"{self._serving.name}: {path} must have {self.rows} rows, as the requests have, "
                    f"got {tensor.size(0)}"
                )
        ends = itertools.accumulate(self._rows)
        return [map_rows(output, end - rows, end) for rows, end in zip(self._rows, ends, strict=True)]


class Calls:
    """The calls of a job's served functions, by any thread; see Job.serve."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._in_flight = 0
        self._is_over = False

    def begin(self) -> bool:
        """Whether the job still answers."""
        with self._changed:
            self._in_flight += not self._is_over
            return not self._is_over

    def done(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def end(self, job: JobContext) -> None:
        """Waits for the calls that have begun. Those of a cancelled job stop at their next op; one that runs none is
        left behind."""
        patience = _PATIENCE_S
        with self._changed:
            self._is_over = True
            while self._in_flight and patience > 0:
                self._changed.wait(_CHECK_S)
                patience -= _CHECK_S if job.handle.cancel_requested else 0


class Serving:
    """What the loops of one job over requests have in common."""

    def __init__(self, job: JobContext | None) -> None:
        """Without a job: a program that torchshare does not run."""
        self.job = job
        self.name = "torchshare.requests" if job is None else f"job '{job.name}'"
        self.times = _core.RequestTimes()
        self.slo: str | None = None
        self._has_warned = False
        self.calls = Calls()
        self.open: weakref.WeakSet[RequestBatch] = weakref.WeakSet()
        self.at_end: list[Callable[[], Iterable[Request]]] = []
        """Each returns the requests that a loop has not taken."""

    def promise(self, slo: str | None) -> None:
        """See Job.requests. Raises ValueError for one that cannot be kept: there is one per job and runtime."""
        if slo is None or slo == self.slo:
            return
        try:
            target = _core.LatencyTarget(slo)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.name}: {error}") from None
        if self.slo is not None:
            raise ValueError(f"{self.name}: slo must be the same for all its requests, got {slo!r} after {self.slo!r}")
        if self.job is not None:
            self.job.handle.promise(slo)
        self.slo = slo
        self.times.promise(target.limit)

    def answered(self, arrived: int, taken: int) -> None:
        """Called when a request has its answer; times of `time.monotonic_ns`."""
        now = time.monotonic_ns()
        late = self.times.late
        self.times.answered(arrived, taken, now)
        if self.job is None:
            return
        self.job.handle.report_answer(now - arrived, now - taken)
        if self.times.late > late and not self._has_warned:
            kept = self.job.handle.latency()
            if kept is not None and kept.cannot_hold:
                self._has_warned = True
                log.warning("%s: slo %r cannot be held, even alone; lower jobs wait for its end", self.name, self.slo)

    def check_thread(self) -> None:
        if current.job() is not self.job:
            raise RuntimeError(f"{self.name}: its requests must be taken and answered in its own thread, while it runs")

    def waiting(self) -> AbstractContextManager[None]:
        """Around a wait for a request: lower jobs run."""
        return contextlib.nullcontext() if self.job is None else step_loop.in_input(self.job)

    def synchronize(self) -> None:
        if self.job is not None:
            self.job.handle.synchronize()

    def fail(self, requests: Iterable[Request], error: BaseException) -> None:
        for request in requests:
            if request._fail(error):
                self.times.failed()

    def leave_out(self, requests: Iterable[Request], why: str) -> None:
        for request in requests:
            if not request.done():
                self.fail([request], RuntimeError(f"{self.name}: a request was not answered: {why}"))

    def result(self) -> Requests:
        """What has been measured so far."""
        times = self.times
        latency, service, queued = map(Times.of, (times.latency, times.service, times.queued))
        return Requests(times.latency.count, times.failures, latency, service, queued, self.slo, times.late)

    def end(self) -> None:
        """Called at the end of the job: what has come is not left without an answer."""
        if self.job is not None:
            self.calls.end(self.job)
        for batch in list(self.open):
            self.leave_out(batch.requests, _ENDED)
        for rest in self.at_end:
            self.leave_out(rest(), _ENDED)


def rows_of(data: Any) -> int:
    """Rows of a request: those of its first tensor; 1 without tensors."""
    return next((tensor.size(0) for _, tensor in pytree.tensors(data)), 1)


def shape_of(data: Any) -> list[Any]:
    """Requests whose shapes are equal can be joined."""
    shape: list[Any] = []

    def add(leaf: Any) -> None:
        joins = isinstance(leaf, torch.Tensor) and leaf.dim() > 0
        shape.append((leaf.shape[1:], leaf.dtype, leaf.device) if joins else (type(leaf), leaf))

    pytree.map_leaves(add, data)
    return [type(data), *shape]


def _joined(data: Sequence[Any]) -> Any:
    columns = zip(*(dict(pytree.tensors(each)).values() for each in data), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return pytree.map_tensors(lambda _: next(joined), data[0])
