"""Threads that a job starts draw from its random state, find what it has replaced, and work on its stream. Their ops
are not gated. The job's own thread is to them what the main thread is to a program's."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.isolation import job_handlers
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

TABLE = Table()


@contextlib.contextmanager
def presented(job: JobContext) -> Iterator[None]:
    """Gives the calling thread, which C++ has started, a `threading.Thread` with the job's name. It is no daemon, so
    neither are the threads that it starts, unless they ask to be."""
    name, thread = job.name, threading.current_thread()
    thread._torchshare_main_of = job  # type: ignore[attr-defined]
    thread.name = name
    thread._daemonic = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        thread._delete()  # type: ignore[attr-defined]  # or a later thread with its number would get it


@TABLE.call("threading:Thread", "start")
def _start(original: Callable[[threading.Thread], None], self: threading.Thread) -> None:
    """A thread that a job starts has the job's random state and stream, and finds what the job has replaced."""
    job = current.owner()
    # In plain torch, a new thread has as many intra-op threads as were set last; here, another job may have set them.
    self._torchshare_started = None if job is None else (job, torch.get_num_threads())  # type: ignore[attr-defined]
    original(self)


# `run` may be overridden, or be an attribute of the thread.
@TABLE.call("threading:Thread", "_bootstrap_inner")
def _bootstrap_inner(original: Callable[[threading.Thread], None], self: threading.Thread) -> None:
    """A thread that a job starts has the job's random state and stream, and finds what the job has replaced."""
    started = getattr(self, "_torchshare_started", None)
    if started is None:
        original(self)
        return
    job, threads = started
    # Python 3.14 names the system's thread, too. It keeps the job's name, by which processes that it forks are found.
    self._set_os_name = lambda: None  # type: ignore[attr-defined]
    with contextlib.ExitStack() as scopes:
        try:
            adopted = scopes.enter_context(_C.Adopted(job.handle, threads))
        except BaseException:  # without memory
            self._started.set()  # type: ignore[attr-defined]  # else `start` would wait for ever
            raise
        scopes.enter_context(current.adopted(job, adopted))
        original(self)


def _is_of(job: JobContext, thread: threading.Thread, is_handler: bool) -> bool:
    if thread is threading._main_thread:  # type: ignore[attr-defined]
        return is_handler
    if getattr(thread, "_torchshare_main_of", None) is job:
        return not is_handler
    started = getattr(thread, "_torchshare_started", None)
    is_ours = str(getattr(getattr(thread, "_target", None), "__module__", None)).startswith("torchshare.")
    return started is not None and started[0] is job and not is_ours


@TABLE.call("threading", "enumerate", everywhere=True)
def _enumerate(original: Callable[[], list[threading.Thread]]) -> list[threading.Thread]:
    """A job finds its own thread, in place of the main thread, and those that it has started."""
    job = job_handlers.program()
    if job is None:
        return original()
    is_handler = job_handlers.handled() is not None  # it runs in the process's main thread
    return [thread for thread in original() if _is_of(job, thread, is_handler)]


@TABLE.call("threading", "active_count", everywhere=True)
def _active_count(original: Callable[[], int]) -> int:
    """A job finds its own thread, in place of the main thread, and those that it has started."""
    return original() if job_handlers.program() is None else len(threading.enumerate())


def _become_main_thread() -> None:
    """Called in a forked child. Python before gh-102512 leaves it with a main thread that cannot end, if a thread
    forked that Python has not started: a job's."""
    thread = threading._main_thread  # type: ignore[attr-defined]
    if isinstance(thread, threading._DummyThread):
        thread.__class__ = threading._MainThread  # type: ignore[attr-defined]
        thread._set_tstate_lock()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_become_main_thread)
