"""The loop of a periodic job: `Job.periods`."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchshare.context import current, step_loop
from torchshare.context.checks import check_seconds
from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_CHECK_EVERY = 50
"""Number of units between two checks of whether the deadlines can be met; see DeadlineKeeper::kEnough in csrc."""


def periods(
    source: Any = None,
    *,
    period: float | None = None,
    deadline: float | None = None,
    unit_time: float | None = None,
) -> Iterator[Any]:
    """For a script: the same as `Job.periods`. Without torchshare, units are released all the same."""
    return over(current.job(), source, period, deadline, unit_time)


def over(
    job: JobContext | None, source: Any, period: float | None, deadline: float | None, unit_time: float | None
) -> Iterator[Any]:
    """See Job.periods."""
    user = "torchshare.periods" if job is None else f"job '{job.name}'"
    for name, value in (("period", period), ("deadline", deadline), ("unit_time", unit_time)):
        check_seconds(user, name, value)
    take = _taker(user, source)
    if job is None:
        if period is None:
            raise ValueError(f"{user}: period must be a positive number of seconds, got None")
        return _without_job(take, period, deadline or period)
    _check_thread(job)
    job.handle.expect_periods(period, deadline, unit_time)
    return _units(job, take)


def _check_thread(job: JobContext) -> None:
    if current.job() is not job:
        raise RuntimeError(
            f"job '{job.name}': its periods must be run in its own thread, got thread "
            f"{threading.current_thread().name!r}"
        )


def _taker(user: str, source: Any) -> Callable[[], Any]:
    """Returns a function that returns the next item or raises StopIteration."""
    if source is None:
        return itertools.count().__next__
    if isinstance(source, Iterable):
        return iter(source).__next__
    if callable(source):
        taken: Callable[[], Any] = source
        return taken
    raise TypeError(f"{user}: source must be an iterable, a callable or None, got {source!r}")


def _units(job: JobContext, take: Callable[[], Any]) -> Iterator[Any]:
    handle = job.handle
    _check_thread(job)
    handle.begin_periods()
    try:
        for unit in itertools.count(1):
            handle.await_release()
            try:
                with step_loop.in_input(job):
                    item = take()
            except StopIteration:
                return
            handle.begin_unit()
            try:
                yield item
            except GeneratorExit:  # the loop was left: its last unit is done
                if current.job() is job:  # otherwise the job has ended
                    _end(job)
                raise
            _check_thread(job)
            _end(job)
            if unit % _CHECK_EVERY == 0:
                _say_if_infeasible(job)
    finally:
        if current.job() is job:
            handle.end_periods()


def _end(job: JobContext) -> None:
    if not job.handle.cancel_requested:
        job.handle.synchronize()
        job.handle.end_unit()


def _say_if_infeasible(job: JobContext) -> None:
    """Warns once if the measured units of periodic jobs show that deadlines will be missed."""
    if not job.handle.has_deadline_problem or job.warned_of_deadlines:
        return
    problem = job.handle.deadline_problem()
    if problem:  # otherwise the job that caused it has just ended
        job.warned_of_deadlines = True
        log.warning("job '%s': %s", job.name, problem)


def _without_job(take: Callable[[], Any], period: float, deadline: float) -> Iterator[Any]:
    release = time.monotonic()
    while True:
        late = time.monotonic() - (release + deadline)
        if late >= 0:
            release += (late // period + 1) * period
        time.sleep(max(0.0, release - time.monotonic()))
        try:
            item = take()
        except StopIteration:
            return
        yield item
        release += period
