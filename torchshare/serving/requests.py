"""The loop of a job that answers requests: `Job.requests`."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchshare import _core
from torchshare.context import current, step_loop
from torchshare.serving.request import Request, RequestBatch, rows_of, shape_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

Get = Callable[[float], Any]
"""Waits so many seconds for a request. Raises queue.Empty if none has come, StopIteration if none will."""

_POLL_S = 0.05  # how often a job that waits looks for its cancellation


@dataclass(frozen=True)
class Source:
    get: Get
    can_wait: bool
    """Whether `get` keeps to its seconds."""


def source_of(job: str, source: Any) -> Source:
    """Raises TypeError if requests cannot come from it."""
    if callable(getattr(source, "get", None)):
        return Source(_getter(lambda seconds: source.get(timeout=seconds) if seconds > 0 else source.get(False)), True)
    if isinstance(source, Iterable):
        iterator = iter(source)
        return Source(_getter(lambda _: next(iterator)), False)
    if callable(source):
        return Source(_getter(source), True)
    raise TypeError(f"job '{job}': source must be a queue, an iterable or a callable, got {source!r}")


def _getter(get: Get) -> Get:
    shut_down: Any = getattr(queue, "ShutDown", StopIteration)  # from Python 3.13

    def request(seconds: float) -> Request:
        try:
            got = get(seconds)
        except shut_down:
            raise StopIteration from None
        if got is None:
            raise StopIteration
        return got if isinstance(got, Request) else Request(got)

    return request


def check(job: str, source: Source, max_batch: int, max_wait: float) -> None:
    """Raises ValueError for arguments of Job.requests that are invalid."""
    if not isinstance(max_batch, int) or isinstance(max_batch, bool) or max_batch < 1:
        raise ValueError(f"job '{job}': max_batch must be a positive integer, got {max_batch!r}")
    if not isinstance(max_wait, (int, float)) or not 0 <= max_wait <= 60:
        raise ValueError(f"job '{job}': max_wait must be from 0 to 60 seconds, got {max_wait!r}")
    if max_batch > 1 and not source.can_wait:
        raise ValueError(f"job '{job}': max_batch must be 1 for a source that is an iterable, got {max_batch}")
    if max_wait > 0 and max_batch == 1:
        raise ValueError(f"job '{job}': max_wait must be 0 without max_batch, got {max_wait}")


def serve(
    job: JobContext, source: Source, max_batch: int, max_wait: float
) -> Generator[RequestBatch, None, None]:
    """See Job.requests."""
    if job.requests is None:
        job.requests = _core.RequestTimes()
    waiting = _Waiting(job, source.get)
    batch: RequestBatch | None = None
    try:
        while first := waiting.next():
            requests = [first]
            if max_batch > 1:
                waiting.add_to(requests, max_batch, first._arrived + int(max_wait * 1e9))
            batch = RequestBatch(job, requests, [rows_of(each.data) for each in requests])
            yield batch
            _fail(job, batch.requests, "its loop went on without an answer")
    finally:
        why = "the job has stopped answering"
        _fail(job, batch.requests if batch else [], why)
        _fail(job, waiting.rest() if source.can_wait else [], why)


def _fail(job: JobContext, requests: Iterable[Request], why: str) -> None:
    for request in requests:
        if request._fail(RuntimeError(f"job '{job.name}': a request was not answered: {why}")):
            job.requests.failed()


class _Waiting:
    """The requests that have come from a source and are not answered."""

    def __init__(self, job: JobContext, get: Get) -> None:
        self._job = job
        self._get = get
        self._held: Request | None = None  # it did not fit into the last batch
        self._is_over = False

    def next(self) -> Request | None:
        """Waits for a request; None: there will be none. While the job waits, lower jobs run."""
        while not (request := self._take(_POLL_S)) and not self._is_over:
            pass
        return request

    def add_to(self, requests: list[Request], max_rows: int, until_ns: int) -> None:
        """Adds those that fit, and waits for them until `until_ns`."""
        rows, shape = rows_of(requests[0].data), shape_of(requests[0].data)
        while rows < max_rows and not self._is_over:
            seconds = (until_ns - time.monotonic_ns()) / 1e9
            request = self._take(min(max(seconds, 0.0), _POLL_S))
            if request is None:
                if seconds <= 0:
                    return
                continue
            rows += rows_of(request.data)
            if rows > max_rows or shape_of(request.data) != shape:
                self._held = request
                return
            requests.append(request)

    def _take(self, seconds: float) -> Request | None:
        """None: none has come, or the client has cancelled it."""
        if current.job() is not self._job:
            raise RuntimeError(f"job '{self._job.name}': its requests must be used in its own thread, while it runs")
        request, self._held = self._held, None
        if request is None:
            with step_loop.in_input(self._job), contextlib.suppress(queue.Empty):
                try:
                    request = self._get(seconds)
                except StopIteration:
                    self._is_over = True
        return None if request is None or request.done() else request

    def rest(self) -> list[Request]:
        """All that have come, without waiting, once the loop has ended."""
        found = [] if self._held is None else [self._held]
        with contextlib.suppress(queue.Empty, StopIteration):
            while not self._is_over:
                found.append(self._get(0.0))
        return found
