"""The processes that each job has started: a job that waits for any of its children gets no other job's, whose exit
status would be lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torchshare.isolation import job_handlers
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

TABLE = Table()
_PAUSE_S = 0.005
_WHY = "A job that waits for any process gets one that it has started."

_lock = threading.RLock()  # guards _pids; a signal may come while it is held
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_pids: WeakKeyDictionary[JobContext, set[int]] = WeakKeyDictionary()
_processes: WeakKeyDictionary[BaseProcess, JobContext] = WeakKeyDictionary()


def started(pid: int) -> int:
    """Called with the process that the calling thread has started. Returns it."""
    if pid > 0:
        with _lock:
            for pids in _pids.values():
                pids.discard(pid)  # that process has ended, and another has its number
            job = job_handlers.program()
            if job is not None:
                _pids.setdefault(job, set()).add(pid)
    return pid


@TABLE.call("os", "fork", why=_WHY)
def _fork(original: Callable[[], int]) -> int:
    return started(original())


def _pids_of(job: JobContext) -> list[int]:
    with _lock:
        return list(_pids.get(job, ()))


def _forget(job: JobContext, pid: int) -> None:
    with _lock:
        _pids[job].discard(pid)


def _look(job: JobContext, pid: int) -> Any:
    """Finds what a wait for the process would, which it leaves to be found. Forgets a process that has been waited for,
    and raises ChildProcessError."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        _forget(job, pid)
        raise


def has_news(job: JobContext) -> bool:
    """Whether a process that the job has started has ended or stopped since."""
    for pid in _pids_of(job):
        try:
            if _look(job, pid) is not None:
                return True
        except ChildProcessError:  # other code has waited for it
            return True
    return False


def _wait_for_any(job: JobContext, wait: Callable[[int, int], Any], options: int) -> Any:
    """`wait` is as `os.waitpid`, or as `os.waitid` of one process, which returns None if nothing has changed."""
    while True:
        unchanged: list[Any] = []
        for pid in _pids_of(job):
            try:
                found = wait(pid, options | os.WNOHANG)
            except ChildProcessError:
                _forget(job, pid)  # other code has waited for it
                continue
            if found is not None and found[0] != 0:
                with contextlib.suppress(ChildProcessError):
                    _look(job, pid)
                return found
            unchanged.append(found)
        if not unchanged and not _pids_of(job):
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        if unchanged and options & os.WNOHANG:
            return unchanged[0]
        time.sleep(_PAUSE_S)


@TABLE.call("os", "forkpty", why=_WHY)
def _fork_with_terminal(original: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    pid, terminal = original()
    return started(pid), terminal


@TABLE.call("os", "waitid", why=_WHY)
def _wait_for_id(original: Callable[[int, int, int], Any], kind: int, number: int, options: int, /) -> Any:
    job = job_handlers.program() if kind == os.P_ALL else None
    if job is None:
        return original(kind, number, options)
    return _wait_for_any(job, functools.partial(original, os.P_PID), options)


@TABLE.call("os", "wait", why=_WHY)
def _wait(original: Callable[[], Any]) -> Any:
    job = job_handlers.program()
    return original() if job is None else _wait_for_any(job, os.waitpid, 0)


@TABLE.call("os", "wait3", why=_WHY)
def _wait3(original: Callable[[int], Any], options: int) -> Any:
    job = job_handlers.program()
    return original(options) if job is None else _wait_for_any(job, os.wait4, options)


@TABLE.call("os", "waitpid", "wait4", why=_WHY)
def _wait_for(original: Callable[[int, int], Any], pid: int, options: int) -> Any:
    job = job_handlers.program() if pid in (-1, 0) else None  # all jobs are of one process group
    return original(pid, options) if job is None else _wait_for_any(job, original, options)


@TABLE.call("multiprocessing.process:BaseProcess", "start", why="`active_children` lists a job's own.")
def _start_process(original: Callable[[BaseProcess], None], self: BaseProcess) -> None:
    job = job_handlers.program()
    if job is not None:
        _processes[self] = job
    original(self)


@TABLE.call("multiprocessing.process", "active_children", everywhere=True)
def _active_children(original: Callable[[], list[BaseProcess]]) -> list[BaseProcess]:
    """A job finds the processes that it has started."""
    job = job_handlers.program()
    return [each for each in original() if job is None or _processes.get(each) is job]
