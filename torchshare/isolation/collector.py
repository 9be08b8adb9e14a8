"""Python's garbage collector, of which a process has one. It is off while every job has switched it off.

Training loops switch it off and collect between steps. For the other jobs it would be off, too, and for good once such
a job has ended: what they leave in cycles, with its tensors, would fill the memory.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.table import Table

TABLE = Table()

_switch_on, _switch_off = gc.enable, gc.disable  # not the ones below

_lock = threading.Lock()  # guards the variables below
_jobs: weakref.WeakSet[JobContext] = weakref.WeakSet()  # those that have not ended
_without: weakref.WeakSet[JobContext] = weakref.WeakSet()  # those that have switched it off
_is_off = False  # by all jobs

os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def expect(job: JobContext) -> None:
    """Called before a job's thread can run."""
    with _lock:
        _jobs.add(job)
        _apply()


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    with _lock:
        _jobs.discard(job)
        _without.discard(job)
        _apply()


def _apply() -> None:
    global _is_off
    was_off, _is_off = _is_off, len(_jobs) > 0 and _jobs <= _without
    if _is_off != was_off:
        _switch_off() if _is_off else _switch_on()


@TABLE.call("gc", "disable")
def _disable(original: Callable[[], None]) -> None:
    """The collector is off while every job has switched it off."""
    job = current.owner()
    if job is None:
        original()
        return
    with _lock:
        _without.add(job)
        _apply()


@TABLE.call("gc", "enable")
def _enable(original: Callable[[], None]) -> None:
    """The collector is off while every job has switched it off."""
    job = current.owner()
    if job is not None:
        with _lock:
            _without.discard(job)
            _apply()
    original()


@TABLE.call("gc", "isenabled")
def _isenabled(original: Callable[[], bool]) -> bool:
    """The collector is off while every job has switched it off."""
    return original() and current.owner() not in _without
