"""The body of a job, in its own thread."""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchshare import _C
from torchshare.context import current, step_loop
from torchshare.context.errors import Cancelled, described, users_traceback
from torchshare.context.names import Lines
from torchshare.context.tracebacks import drop_frames
from torchshare.isolation import agreement, job_signals, routing, threads
from torchshare.runtime import crash_log, forked
from torchshare.runtime.closing import Closer
from torchshare.runtime.job import Job

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_WORTH_COLLECTING = 1 << 20
"""Bytes. A full collection takes a tenth of a second with torch in memory, in which no other job runs Python."""


class Failed(Exception):
    """Tells C++ that the body failed."""

    def __init__(self, cause: BaseException, wait_s: float | None) -> None:
        """`wait_s` are the seconds until the job's next attempt; None: it has none, and the job has the exception."""
        super().__init__()
        self.cause = cause
        self.wait_s = wait_s


def run_body(
    job: Job,
    context: JobContext,
    handle: _C.Job,
    function: Callable[[Job], Any],
    closer: Closer,
    at_end: Callable[[], None],
    wait_before_next: Callable[[BaseException], float | None],
) -> None:
    """The body of an attempt of a job, in its thread. The exception that it raises determines its state.
    `wait_before_next` returns the seconds from a failure to the next attempt; None if there is none."""
    context.handle = handle  # Attempts may not have set it yet
    context.thread = threading.get_ident()
    crash_log.enter_job(job.name)
    end: Failed | type[Cancelled] | None = None
    with current.entered(context), threads.presented(context):
        try:
            step_loop.begin(context)
            if handle.memory_limit is not None:
                log.info("job '%s': memory budget: %.1f MiB", job.name, handle.memory_limit / 2**20)
            context.loop.begin_job(functools.partial(closer.newest_common, context))
            agreement.enter(context)
            value = _call(function, job)
            agreement.check_end(context)
            context.loop.end_job()
            at_end()
            if handle.is_in_body:  # otherwise close() left the job behind, and its result is final
                job._value = value
        except Cancelled as error:
            end = type(error)
            closer.tell_ranks(context, "ended", "was cancelled")
            drop_frames(error)
        except BaseException as error:
            error = _explained(job, error)
            end = Failed(error, wait_before_next(error))
            if end.wait_s is None:
                job._exception = error
                _report_failure(job, error, closer)
            else:
                _report_retry(job, error, end.wait_s)
            drop_frames(error)
        finally:
            if context.serving is not None:
                context.serving.end()
            context.release()
            routing.leave_job(context)
            if handle.memory_held > _WORTH_COLLECTING:
                gc.collect()  # what the function has left in cycles
            crash_log.leave_job(job.name)
            closer.leave(context)
    if end is not None:
        try:
            raise end
        finally:
            del end  # its traceback refers to this frame


def _call(function: Callable[[Job], Any], job: Job) -> Any:
    process = os.getpid()
    try:
        value = function(job)
    except BaseException as error:
        if os.getpid() != process:
            forked.end(error)
        if isinstance(error, SystemExit) and not error.code:
            return None
        raise
    finally:
        job_signals.leave(job._context)
    if os.getpid() != process:
        forked.end(None)
    return value


def _explained(job: Job, error: BaseException) -> BaseException:
    """It may have failed because of what another job has set, or because another job has made the device unusable, of
    which a library such as cuBLAS says only that it failed."""
    try:
        agreement.check_end(job._context, error)
        if isinstance(error, RuntimeError):
            _check_device(job, str(error).partition("\n")[0])
    except RuntimeError as refusal:
        refusal.__cause__ = error
        return refusal
    return error


def _check_device(job: Job, error: str) -> None:
    try:
        job._context.handle.check_device()
    except RuntimeError as lost:
        if not error or error not in str(lost):
            raise RuntimeError(f"{error or 'an error without text'} (the device is lost: {lost})") from None


def _report_retry(job: Job, error: BaseException, wait_s: float) -> None:
    traceback = Lines(users_traceback(error))
    text = "job '%s' failed after %d steps in attempt %d; it starts again in %g s\n%s"
    log.warning(text, job.name, job.result.steps, job._attempts, wait_s, traceback)


def _report_failure(job: Job, error: BaseException, closer: Closer) -> None:
    handle = job._context.handle
    if isinstance(error, SystemExit):
        log.error("job '%s' called sys.exit(%r) after %d steps", job.name, error.code, job.result.steps)
        closer.tell_ranks(job._context, "ended", f"called sys.exit({error.code!r})")
        return
    if isinstance(error, RuntimeError) and not handle.cancel_requested and closer.ended_elsewhere(job._context):
        handle.cancel()  # a collective of it failed for that reason
    if not handle.cancel_requested:
        traceback = Lines(users_traceback(error))
        log.error("job '%s' failed after %d steps\n%s", job.name, job.result.steps, traceback)
    closer.tell_ranks(job._context, "ended", f"failed with {described(error)}")
