"""The loop of a job that answers requests: `Job.requests`."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torchshare.context import current
from torchshare.serving.deferred import deferred_kind
from torchshare.serving.request import Request
from torchshare.serving.request_batch import RequestBatch, rows_of, shape_of
from torchshare.serving.serving import Serving, serving_of

Get = Callable[[float], Request]
"""Waits so many seconds for a request. Raises queue.Empty if none has come, StopIteration if none will."""

_LARGEST = 10_000  # requests in a queue that does not say how many it has
_POLL_S = 0.05  # how often a job that waits looks for its cancellation


@dataclass(frozen=True)
class Source:
    get: Get
    can_wait: bool
    """Whether `get` keeps to its seconds."""
    size: Callable[[], int] | None = None
    """How many requests a queue has, at most; None: it is no queue."""


def source_of(user: str, source: Any) -> Source:
    """Raises TypeError if requests cannot come from it."""
    if deferred_kind(getattr(source, "get", None)) is not None:
        name = f"{type(source).__module__}.{type(source).__qualname__}"
        raise TypeError(
            f"{user}: source must be a queue that a thread can wait for, got {name}: "
            "put requests into a queue.Queue, and await asyncio.to_thread(request.result)"
        )
    if (kind := deferred_kind(source)) is not None:
        raise TypeError(f"{user}: source must be a queue, an iterable or a plain callable, got {kind}")
    if callable(getattr(source, "get", None)):
        get = _getter(user, lambda seconds: _get(source, seconds), isinstance(source, queue.PriorityQueue))
        return Source(get, True, getattr(source, "qsize", lambda: _LARGEST))
    if isinstance(source, Iterable):
        iterator = iter(source)
        return Source(_getter(user, lambda _: next(iterator)), False)
    if callable(source):
        return Source(_getter(user, source), True)
    raise TypeError(f"{user}: source must be a queue, an iterable or a callable, got {source!r}")


def _get(source: Any, seconds: float) -> Any:
    """The next object of a queue. Raises queue.Empty if none comes within `seconds`."""
    if isinstance(source, queue.SimpleQueue):
        # First without waiting: `get` then waits once, unless another thread takes the object. Otherwise CPython
        # computes the remaining time again; if the thread had no core until it is negative, CPython waits for ever.
        with contextlib.suppress(queue.Empty):
            return source.get(False)
    return source.get(timeout=seconds) if seconds > 0 else source.get(False)


def _getter(user: str, get: Callable[[float], Any], has_priorities: bool = False) -> Get:
    shut_down: Any = getattr(queue, "ShutDown", StopIteration)  # from Python 3.13

    def request(seconds: float) -> Request:
        try:
            got = get(seconds)
        except shut_down:
            raise StopIteration from None
        if isinstance(got, tuple):
            got = _of_tuple(user, got, has_priorities)
        if got is None:
            raise StopIteration
        return got if isinstance(got, Request) else Request(got)

    return request


def _of_tuple(user: str, got: tuple[Any, ...], has_priorities: bool) -> Any:
    """What a source has given as a tuple: data, or a request behind its priority; in a priority queue, the end, too."""
    if got and (isinstance(got[-1], Request) or (has_priorities and got[-1] is None)):
        return got[-1]
    held = [each for each in got if isinstance(each, Request)]
    if not held:
        return got
    error = TypeError(f"{user}: a request in a tuple must be its last item, as in (priority, request), got {got!r}")
    for each in held:
        each._fail(error)
    raise error


def requests(
    source: Any, *, max_batch: int = 1, max_wait: float = 0.0, slo: str | None = None
) -> Iterator[RequestBatch]:
    """For a script: the same as `Job.requests`. Without torchshare, its requests are answered all the same."""
    job = current.job()
    return serve(Serving(None) if job is None else serving_of(job), source, max_batch, max_wait, slo)


def serve(serving: Serving, source: Any, max_batch: int, max_wait: float, slo: str | None) -> Iterator[RequestBatch]:
    """See Job.requests."""
    found = source_of(serving.name, source)
    if not isinstance(max_batch, int) or isinstance(max_batch, bool) or max_batch < 1:
        raise ValueError(f"{serving.name}: max_batch must be a positive integer, got {max_batch!r}")
    if not isinstance(max_wait, (int, float)) or not 0 <= max_wait <= 60:
        raise ValueError(f"{serving.name}: max_wait must be from 0 to 60 seconds, got {max_wait!r}")
    if max_batch > 1 and not found.can_wait:
        raise ValueError(f"{serving.name}: max_batch must be 1 for a source that is an iterable, got {max_batch}")
    if max_wait > 0 and max_batch == 1:
        raise ValueError(f"{serving.name}: max_wait must be 0 without max_batch, got {max_wait}")
    serving.promise(slo)
    waiting = _Waiting(serving, found)
    if found.size is not None:
        waiting = serving.sources.setdefault(id(source), waiting)
    return _batches(serving, waiting, max_batch, int(max_wait * 1e9))


def _batches(serving: Serving, waiting: _Waiting, max_batch: int, max_wait_ns: int) -> Iterator[RequestBatch]:
    waiting.is_over = False
    while first := waiting.next():
        found = [first]
        if max_batch > 1:
            waiting.add_to(found, max_batch, first._arrived + max_wait_ns)
        batch = RequestBatch(serving, found, [rows_of(each.data) for each in found])
        del found, first
        yield batch
        batch.end()
        del batch  # fails its requests if the program has dropped it, too


class _Waiting:
    """The requests of a source that no loop has taken."""

    def __init__(self, serving: Serving, source: Source) -> None:
        self._serving = serving
        self._source = source
        self._held: Request | None = None  # it did not fit into the last batch
        self.is_over = False

    def next(self) -> Request | None:
        """Waits for a request; None: there will be none. While the job waits, lower jobs run."""
        while not (request := self._take(_POLL_S)) and not self.is_over:
            pass
        return request

    def add_to(self, requests: list[Request], max_rows: int, until_ns: int) -> None:
        """Adds those that fit, and waits for them until `until_ns`."""
        rows, shape = rows_of(requests[0].data), shape_of(requests[0].data)
        while rows < max_rows and not self.is_over:
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
        """Waits so long. None: no request has come that its client still wants."""
        self._serving.check_thread()
        request = self._received(seconds)
        while request is not None and request.done():
            request = self._received(0.0)
        return request

    def _received(self, seconds: float) -> Request | None:
        if self._held is not None:
            held, self._held = self._held, None
            return held
        with self._serving.waiting():
            try:
                return self._source.get(seconds)
            except queue.Empty:
                return None
            except StopIteration:
                self.is_over = True
                return None

    def rest(self) -> Iterator[Request]:
        """What has come, without waiting."""
        if self._held is not None:
            yield self._held
        if self.is_over or self._source.size is None:
            return
        for _ in range(self._source.size()):
            try:
                yield self._source.get(0.0)
            except (queue.Empty, StopIteration):
                return
            except Exception:  # one that cannot be read; those behind it can
                continue
