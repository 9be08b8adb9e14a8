"""`signal.setitimer(ITIMER_REAL)` and `signal.alarm`: a process has one such timer, and each job gets its own."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

from torchshare.context.job_context import JobContext
from torchshare.isolation import process_signals
from torchshare.isolation.job_handlers import program
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

_SHORTEST_S = 1e-6  # 0 would disarm
_set = signal.setitimer
_get = signal.getitimer


@dataclass
class _Timer:
    due: float
    interval: float

    def left(self) -> tuple[float, float]:
        return max(self.due - time.monotonic(), _SHORTEST_S), self.interval


_lock = threading.RLock()  # guards what follows; a signal may come while it is held
_timers: dict[JobContext | None, _Timer] = {}  # None: the program's
_armed = False  # the process's timer
_sent = False  # its alarm, for which the main thread has not called pop_due yet
_NONE = (0.0, 0.0)


TABLE = Table()


@TABLE.at_start
def _keep_programs(patches: Patches) -> None:
    left, interval = _get(signal.ITIMER_REAL)
    if left:
        _timers[None] = _Timer(time.monotonic() + left, interval)
        _arm()
    patches.at_undo(_leave_to_program)


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    with _lock:
        if _timers.pop(job, None) is not None:
            _arm()


def pop_due() -> list[JobContext | None] | None:
    """The owners of the timers that have caused the SIGALRM that has come: none if theirs were set again or left since.
    Returns None for a SIGALRM from elsewhere. Arms the next one."""
    global _armed, _sent
    with _lock:
        if _armed and _get(signal.ITIMER_REAL)[0] == 0:
            _armed, _sent = False, True
        from_timer, _sent = _sent, False
        now = time.monotonic()
        due = [owner for owner, timer in _timers.items() if timer.due <= now + _SHORTEST_S]
        for owner in due:
            timer = _timers[owner]
            if timer.interval:
                timer.due = now + timer.interval
            else:
                del _timers[owner]
        if due:
            _arm()
        return due if due or from_timer else None


def _start(owner: JobContext | None, seconds: float, interval: float) -> tuple[float, float]:
    with _lock:
        former = _timers.pop(owner, None)
        if seconds:
            _timers[owner] = _Timer(time.monotonic() + seconds, interval)
        _arm()
    return _NONE if former is None else former.left()


def _arm() -> None:
    _set_process_timer(min((timer.left()[0] for timer in _timers.values()), default=0.0))


def _set_process_timer(seconds: float, interval: float = 0.0) -> None:
    global _armed, _sent
    left, _ = _set(signal.ITIMER_REAL, seconds, interval)
    _sent = _sent or (_armed and left == 0)
    _armed = seconds > 0


def _leave_to_program() -> None:
    global _armed
    with _lock:
        timer = _timers.get(None)
        _timers.clear()
        _set_process_timer(*(_NONE if timer is None else timer.left()))
        _armed = False  # here: it is the program's


@TABLE.call("signal", "setitimer")
def _setitimer(original: Any, which: int, seconds: float, interval: float = 0.0, /) -> tuple[float, float]:
    """Each job has its own timer."""
    if which != signal.ITIMER_REAL or seconds < 0 or interval < 0:
        former: tuple[float, float] = original(which, seconds, interval)  # raises for an invalid time
        return former
    owner = program()
    if owner is not None and not process_signals.is_taken(signal.SIGALRM):
        process_signals.in_main_thread(functools.partial(process_signals.take, [signal.SIGALRM]))
    return _start(owner, seconds, interval)


@TABLE.call("signal", "getitimer")
def _getitimer(original: Any, which: int, /) -> tuple[float, float]:
    """Each job has its own timer."""
    if which != signal.ITIMER_REAL:
        found: tuple[float, float] = original(which)
        return found
    with _lock:
        timer = _timers.get(program())
    return _NONE if timer is None else timer.left()


@TABLE.call("signal", "alarm")
def _alarm(original: Any, seconds: int, /) -> int:
    """Each job has its own timer."""
    if seconds < 0:
        return int(original(seconds))
    left = signal.setitimer(signal.ITIMER_REAL, float(int(seconds)))[0]
    return max(1, round(left)) if left else 0


def _forget() -> None:
    """Called in a forked child, which begins without a timer."""
    global _armed, _sent
    _timers.clear()
    _armed = _sent = False
    _lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forget)
