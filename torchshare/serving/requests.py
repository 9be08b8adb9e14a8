"""The loop of a job that answers requests: `Job.requests`."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torchshare.context import current
from torchshare.serving.deferred import deferred_kind
from torchshare.serving.request import Request
from torchshare.serving.request_batch import RequestBatch, Together
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
    rest: Callable[[], Iterator[Request]] | None = None
    """What has come and was not got; None: that cannot be had without waiting."""
    queue: int = 0
    """Identifies a queue, which several loops may read; 0: it is none."""


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
        _check_timeout(user, source)
        get = _getter(user, lambda seconds: _get(source, seconds), isinstance(source, queue.PriorityQueue))
        size = getattr(source, "qsize", lambda: _LARGEST)
        return Source(get, True, lambda: _without_waiting(get, size()), id(source))
    if isinstance(source, Iterable):
        iterator = iter(source)
        rest = (lambda: _requests_in(iterator)) if isinstance(source, (list, tuple, deque)) else None
        return Source(_getter(user, lambda _: next(iterator)), False, rest)
    if callable(source):
        return Source(_getter(user, source), True)
    raise TypeError(f"{user}: source must be a queue, an iterable or a callable, got {source!r}")


def _check_timeout(user: str, source: Any) -> None:
    """Raises TypeError for a queue for which nothing can wait a limited time, such as multiprocessing.SimpleQueue."""
    try:
        inspect.signature(source.get).bind(timeout=0.0)
    except (ValueError, NameError):  # it has no signature, or its annotations name what is missing
        pass
    except TypeError:
        name = f"{type(source).__module__}.{type(source).__qualname__}"
        raise TypeError(f"{user}: source must have get(timeout=...), as queue.Queue has, got {name}") from None


def _requests_in(items: Iterable[Any]) -> Iterator[Request]:
    """Yields the requests among the items, also those behind their priority."""
    for item in items:
        request = item[-1] if isinstance(item, tuple) and item else item
        if isinstance(request, Request):
            yield request


def _without_waiting(get: Get, most: int) -> Iterator[Request]:
    for _ in range(most):
        try:
            yield get(0.0)
        except (queue.Empty, StopIteration):
            return
        except Exception:  # one that cannot be read; those behind it can
            continue


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
    waiting = serving.sources.get(found.queue)
    if waiting is None:
        waiting = _Waiting(serving, found)
        serving.sources[waiting.key] = waiting
    if current.job() is serving.job:
        waiting.begin()
    return _batches(serving, waiting, max_batch, int(max_wait * 1e9))


def _batches(serving: Serving, waiting: _Waiting, max_batch: int, max_wait_ns: int) -> Iterator[RequestBatch]:
    waiting.begin()
    try:
        while waiting.together(max_batch, max_wait_ns):
            while waiting.groups:
                batch = _joined(serving, waiting.groups)
                if batch is None:
                    continue
                yield batch
                batch.end()
                del batch  # fails its requests if the program has dropped it, too
    finally:
        # Not only at the end of the job: on its way there, its function may wait for its clients.
        if serving.is_cancelled():
            serving.tell_ended()
        elif waiting.has_nothing:
            serving.sources.pop(waiting.key, None)


def _joined(serving: Serving, groups: list[list[Request]]) -> RequestBatch | None:
    """Takes the first group as a batch. If its requests cannot be joined, each becomes a group; one that cannot be
    read fails."""
    group = groups[0]
    try:
        batch = RequestBatch(serving, group)
    except Exception as error:
        if serving.is_ending():
            raise
        if len(group) == 1:
            serving.fail(group, error)
            del groups[0]
        else:
            serving.say_split(len(group), error)
            groups[:1] = [[each] for each in group]
        return None
    del groups[0]
    return batch


_readers: Counter[int] = Counter()  # the jobs that read a queue
_lock = threading.Lock()  # guards _readers
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class _Waiting:
    """The requests of a source that no batch has."""

    def __init__(self, serving: Serving, source: Source) -> None:
        self._serving = serving
        self._source = source
        self._taken: list[Request] = []  # from the source
        self.groups: list[list[Request]] = []
        """What comes next: a batch each, if they can be joined."""
        self.is_over = False
        self.key = source.queue or id(source)
        self._reads = False

    def begin(self) -> None:
        """Called when a loop is made in the job, and when it begins."""
        self.is_over = False
        if self._serving.job is not None and self._source.queue and not self._reads:
            self._reads = True
            with _lock:
                _readers[self._source.queue] += 1

    @property
    def has_nothing(self) -> bool:
        """Whether no request can be left, now and later."""
        left = self._taken or self.groups
        return not self._source.queue and not left and (self.is_over or self._source.rest is None)

    def together(self, max_rows: int, max_wait_ns: int) -> bool:
        """Waits for a request, and for others that fit into one batch with it, until it is `max_wait_ns` old. Returns
        False if there will be no more. While the job waits, lower jobs run."""
        if self.groups:  # an earlier loop has left them
            return True
        self._taken = [each for each in self._taken if self._is_wanted(each)]
        while not self._taken and not self.is_over:
            self._take(_POLL_S)
        count = min(len(self._taken), 1)
        if count and max_rows > 1:
            count = self._add(max_rows, self._taken[0]._arrived + max_wait_ns)
        if count:
            self.groups.append(self._taken[:count])
            del self._taken[:count]
        return count > 0

    def _add(self, max_rows: int, until_ns: int) -> int:
        """Takes requests until the batch is full or `until_ns` has come. Returns how many fit."""
        together = Together(max_rows)
        count = 0
        while count < len(self._taken) and together.add(self._taken[count].data):
            count += 1
            while len(self._taken) == count and not together.is_full and not self.is_over:
                seconds = (until_ns - time.monotonic_ns()) / 1e9
                if not self._take(min(max(seconds, 0.0), _POLL_S)) and seconds <= 0:
                    break
        return max(count, 1)

    def _take(self, seconds: float) -> bool:
        """Waits so long. Returns whether a request has come that its client still wants."""
        self._serving.check_thread()
        request = self._received(seconds)
        while request is not None and not self._is_wanted(request):
            request = self._received(0.0)
        if request is not None:
            self._taken.append(request)
        return request is not None

    def _is_wanted(self, request: Request) -> bool:
        if request._has_left():
            self._serving.given_up(request._arrived)
        return not request.done()

    def _received(self, seconds: float) -> Request | None:
        with self._serving.waiting():
            try:
                return self._source.get(seconds)
            except queue.Empty:
                return None
            except StopIteration:
                self.is_over = True
                return None

    def rest(self) -> Iterator[Request]:
        """What the job will not answer. What is in a queue is left to other jobs that read it. Called when the job
        ends."""
        yield from (*itertools.chain(*self.groups), *self._taken)
        if self._reads:
            self._reads = False
            with _lock:
                _readers[self._source.queue] -= 1
                if not _readers[self._source.queue]:
                    del _readers[self._source.queue]
        if self._source.rest is not None and not self.is_over and not _readers[self._source.queue]:
            yield from self._source.rest()
