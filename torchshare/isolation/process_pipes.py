"""Pipes between a job and the processes that it starts. A process that another job forks would keep copies of them
open, and a reader would not see the end of its pipe until that process ends, too."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torchshare.context import current
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

TABLE = Table()

_STARTING = {  # modules
    *("subprocess", "multiprocessing.forkserver"),
    *("multiprocessing.popen_fork", "multiprocessing.popen_spawn_posix"),
}
_LONGEST_S = 2.0
_lock = threading.RLock()  # guards _inodes, and is held during a fork; a signal may come while it is held
_inodes: WeakKeyDictionary[JobContext, dict[int, int]] = WeakKeyDictionary()
"""The keys are file descriptors. One that has been closed, and opened again, has another inode."""


@TABLE.call("os", "pipe")
def _pipe(original: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """A pipe to a process that a job starts is closed in the processes that other jobs fork."""
    job = current.owner()
    if job is None or sys._getframe(2).f_globals.get("__name__") not in _STARTING:
        return original()
    with _lock:
        ends = original()
        _inodes.setdefault(job, {}).update((end, os.fstat(end).st_ino) for end in ends)
    return ends


def _close_others() -> None:
    """Called in a forked child. The file descriptors stay open: objects of the other jobs may close them."""
    _lock._at_fork_reinit()  # type: ignore[attr-defined]
    others = [ends.items() for job, ends in _inodes.items() if job is not _forking]
    if not others:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for end, inode in itertools.chain(*others):
        with contextlib.suppress(OSError):  # it has been closed
            status = os.fstat(end)
            if stat.S_ISFIFO(status.st_mode) and status.st_ino == inode:
                os.dup2(nothing, end, inheritable=False)
    os.close(nothing)


def _before() -> None:
    """Does not wait forever: a finalizer may wait for the end of the fork in the thread that holds the lock."""
    global _acquired, _forking
    _forking = current.owner()
    _acquired = _lock.acquire(timeout=_LONGEST_S)


def _after_in_parent() -> None:
    if _acquired:
        _lock.release()


_acquired = False
_forking: JobContext | None = None
os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_close_others)
