"""Functions of a job that any thread may call: `Job.serve`."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import ParamSpec, TypeVar

from torchshare import _C
from torchshare.context import current
from torchshare.context.errors import Cancelled
from torchshare.serving.deferred import WHOLE_ANSWER, deferred_kind
from torchshare.serving.serving import ENDED, Serving, serving_of

P = ParamSpec("P")
T = TypeVar("T")


class _Here(threading.local):
    serving: Serving | None = None
    """The one for which the thread answers a request."""


_here = _Here()


def serve(function: Callable[P, T], *, slo: str | None = None) -> Callable[P, T]:
    """For a script: the same as `Job.serve`. Without torchshare, returns `function` itself."""
    job = current.job()
    if job is not None:
        return served(serving_of(job), function, slo)
    check("torchshare.serve", function)
    return function


def check(user: str, function: object) -> None:
    """Raises TypeError for what cannot be served, with and without torchshare."""
    if not callable(function):
        raise TypeError(f"{user}: function must be callable, got {function!r}")
    if (kind := deferred_kind(function)) is not None:
        raise TypeError(f"{user}: function must be a plain function, got {kind}: {WHOLE_ANSWER[kind]}")


def served(serving: Serving, function: Callable[P, T], slo: str | None) -> Callable[P, T]:
    """See Job.serve."""
    check(serving.name, function)
    serving.promise(slo)
    serving.calls.may_come = True
    job = serving.job
    assert job is not None

    def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        if _here.serving is serving or os.getpid() != serving.process:
            return function(*args, **kwargs)  # part of a request; or in a forked process, which has no gate
        arrived = time.monotonic_ns()
        if not serving.calls.begin():
            raise serving.unanswered(ENDED)
        former, _here.serving = _here.serving, serving
        began = time.monotonic_ns()
        try:
            if current.job() is job:
                value = _in_own_thread(serving, function, *args, **kwargs)
            else:
                value = _in_thread(serving, function, *args, **kwargs)
        except BaseException:
            serving.times.failed()
            raise
        else:
            serving.answered(arrived, began)
            return value
        finally:
            _here.serving = former
            serving.calls.done()

    return functools.update_wrapper(answer, function, updated=())


def whole(serving: Serving, value: T) -> T:
    """Returns the answer. Raises TypeError for one that has still to be computed, outside of the request."""
    if not isinstance(value, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        return value
    kind = {CoroutineType: "a coroutine", GeneratorType: "a generator"}.get(type(value), "an async generator")
    if not isinstance(value, AsyncGeneratorType):
        value.close()
    raise TypeError(f"{serving.name}: function must return its answer, got {kind}: {WHOLE_ANSWER[kind + ' function']}")


def _in_own_thread(serving: Serving, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    serving.begin_request()
    try:
        value = whole(serving, function(*args, **kwargs))
        serving.synchronize()
        return value
    finally:
        serving.end_request()


def _in_thread(serving: Serving, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """On a thread that is not the job's own."""
    job, owner = serving.job, current.owner()
    assert job is not None
    if owner is not None and owner is not job:
        raise RuntimeError(f"{serving.name}: its served functions must not be called in a job, got job '{owner.name}'")
    try:
        with _C.Serving(job.handle) as thread, current.adopted(job, thread):
            value = whole(serving, function(*args, **kwargs))
            thread.synchronize()
            return value
    except Cancelled:
        raise serving.unanswered("the job was stopped") from None
