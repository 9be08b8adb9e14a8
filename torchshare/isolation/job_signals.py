"""Signals that a job handles: `signal.signal` in a job sets its own handler. It runs in the main thread, as the
script's, and what it raises is raised in the job's thread. Meanwhile the job enters no op, as in a program of its own,
where a handler runs between two.

A job whose handler has taken SIGTERM or Ctrl-C is not cancelled by it; the next one cancels it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torchshare.context import current, interpreter_lock, job_context
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.isolation import children, fork_locks, interrupt, job_faults, job_handlers, job_timers, process_signals
from torchshare.isolation.job_handlers import Handler, by_signal, default_action, lock, name_of, program, running
from torchshare.isolation.table import Table

log = logging.getLogger("torchshare")

TABLE = Table()

_STOPS = (signal.SIGTERM, signal.SIGINT)
_HARMLESS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT}  # without a handler
_LOOK_EVERY_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.016  # between two looks at the locks
_PROCESS_WIDE = {
    *("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGQUIT"),
}


_forks = threading.RLock()  # held during a fork
_jobs: weakref.WeakSet[JobContext] = weakref.WeakSet()  # those that have not ended
_have_been_stopped: weakref.WeakSet[JobContext] = weakref.WeakSet()  # whose handler has taken one of _STOPS
_wakeup_fds: weakref.WeakKeyDictionary[JobContext, int] = weakref.WeakKeyDictionary()
_stops_after: list[int] = []  # of _STOPS, to be sent again after the handler that they have ended


def expect(job: JobContext) -> None:
    """Called when a job has been submitted."""
    with lock:
        _jobs.add(job)


def leave(job: JobContext) -> None:
    """Called at the end of a job, in its thread."""
    with lock:
        _jobs.discard(job)
        for handlers in by_signal.values():
            handlers.pop(job, None)
    job_timers.leave(job)
    job_faults.leave(job)
    interrupt.leave(job)


def sleep(job: JobContext, seconds: float) -> None:
    """time.sleep in a job: what a handler raises ends it."""
    with lock:
        has_handler = any(job in handlers for handlers in by_signal.values())
    if not has_handler:
        job.handle.sleep(seconds)
        return
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        job.handle.sleep(min(left, _LOOK_EVERY_S))


@TABLE.call("signal", "signal")
def _signal(original: Callable[..., Any], signalnum: int, handler: Any) -> Any:
    """Each job has its own handlers."""
    job = job_handlers.caller()
    if job is not None:
        return job_handlers.set_action(job, int(signalnum), handler)
    if process_signals.is_main_thread():
        return process_signals.set_handler_of_program(int(signalnum), handler)
    return original(signalnum, handler)  # raises ValueError


@TABLE.call("signal", "getsignal")
def _getsignal(original: Callable[[int], Any], signalnum: int) -> Any:
    """Each job has its own handlers."""
    job, number = program(), int(signalnum)
    if job is not None:
        return job_handlers.action_of(job, number)
    return process_signals.handler_of_program(number) if process_signals.is_taken(number) else original(signalnum)


def _take(number: int, frame: FrameType | None) -> bool:
    """Runs the jobs' handlers of a signal, and then the program's. Returns False if no job has one."""
    timed = job_timers.pop_due() if number == signal.SIGALRM else None
    if timed == []:
        return True
    with lock:
        handlers = by_signal.get(number, {})
        if timed:
            found = [(job, _handler(job, number)) for job in timed if job is not None]
        else:
            found = [(job, handler) for job, handler in handlers.items() if _listens(job, number)]
            if number == signal.SIGCHLD:
                found = [each for each in found if children.has_news(each[0])]
    if not found and number in _STOPS and running:
        _stops_after.append(number)
        raise KeyboardInterrupt  # ends the handler
    if found and number in _STOPS:
        _have_been_stopped.update(job for job, _ in found)
        _cancel_others([job for job, _ in found], name_of(number))
    for job, handler in found:
        _run_in_main(job, handler, number)
    while _stops_after and not running:
        signal.raise_signal(_stops_after.pop())
    program = process_signals.handler_of_program(number)
    if found and (timed is None or None in timed) and callable(program) and program is not signal.default_int_handler:
        program(number, frame)
    return bool(found)


process_signals.ask_first(_take)


def _listens(job: JobContext, number: int) -> bool:
    return not job.handle.cancel_requested and not (number in _STOPS and job in _have_been_stopped)


def _with_handles() -> list[JobContext]:
    with lock:
        return [job for job in _jobs if hasattr(job, "handle")]


def _cancel_others(handling: list[JobContext], name: str) -> None:
    jobs = [job for job in _with_handles() if job not in handling]
    others = [job for job in jobs if not job.handle.cancel_requested]
    if others:
        names = [", ".join(f"'{job.name}'" for job in jobs) for jobs in (handling, others)]
        log.warning("%s is handled by %s, and cancels %s", name, *names)
    for job in others:
        job.handle.cancel()
        job.watch_cancel(job)
        job.tell_ranks(job, "ended", "was cancelled")


def _run_in_main(job: JobContext, handler: Handler, number: int) -> None:
    if not callable(handler.action) or job not in _jobs:
        return
    at_once = isinstance(handler.action, job_faults.Dump) and not handler.action.chain
    try:
        with _entered(job, handler.script), contextlib.nullcontext() if at_once else job.outside_ops():
            # Frames of a thread that runs at the same time must not be read: without the GIL, the main thread's.
            frame = sys._current_frames().get(job.thread) if interpreter_lock.is_on() else sys._getframe()
            _act(job, handler, number, frame)
    except BaseException as error:
        interrupt.raise_in(job, error)


def _act(job: JobContext, handler: Handler, number: int, frame: FrameType | None) -> None:
    if job in _wakeup_fds:
        with contextlib.suppress(OSError):  # full, or closed meanwhile
            os.write(_wakeup_fds[job], bytes([number]))
    handler.action(number, frame)


@TABLE.call("signal", "set_wakeup_fd")
def _set_wakeup_fd(original: Callable[..., int], fd: int, /, **options: Any) -> int:
    """Each job has its own file descriptor that is written to at a signal."""
    job = job_handlers.caller()
    if job is None:
        return original(fd, **options)
    if fd >= 0 and os.get_blocking(fd):
        raise ValueError(f"the fd {fd} must be in non-blocking mode")
    former = _wakeup_fds.pop(job, -1)
    if fd >= 0:
        _wakeup_fds[job] = fd
    return former


@contextlib.contextmanager
def _entered(job: JobContext, script: ScriptContext | None) -> Iterator[None]:
    """Makes the main thread one of the script's."""
    former = current.script()
    running.append(job)
    current.set_script(script)
    try:
        yield
    finally:
        current.set_script(former)
        running.pop()


@TABLE.call("signal", "raise_signal")
def _raise_signal(original: Callable[[int], None], signalnum: int, /) -> None:
    """A signal that a job sends to its own process is for that job alone."""
    if not _send_to_itself(int(signalnum)):
        original(signalnum)


@TABLE.call("os", "kill")
def _kill(original: Callable[[int, int], None], pid: int, signalnum: int, /) -> None:
    """A signal that a job sends to its own process is for that job alone."""
    if pid != os.getpid() or not _send_to_itself(int(signalnum)):
        original(pid, signalnum)


@TABLE.call("_thread", "interrupt_main")
def _interrupt_main(original: Callable[..., None], signum: int = signal.SIGINT, /) -> None:
    """A signal that a job sends to its own process is for that job alone."""
    if not _send_to_itself(int(signum)):
        original(signum)


def _send_to_itself(number: int) -> bool:
    """A signal that a job's program sends to itself is for that job alone. Returns False if it is not from a job, or
    for the whole process."""
    job = program()
    if job is None or number == 0 or name_of(number) in _PROCESS_WIDE:
        return False
    handler = _handler(job, number)
    if not callable(handler.action):
        return True
    if current.job() is job:
        _act(job, handler, number, sys._getframe(3))
    else:
        process_signals.in_main_thread(lambda: _run_in_main(job, handler, number), wait=False)
    return True


def _handler(job: JobContext, number: int) -> Handler:
    """What the job does at a signal that is for it alone."""
    own = by_signal.get(number, {}).get(job)
    action = default_action(number) if own is None else own.action
    if action is signal.SIG_DFL and number not in _HARMLESS:
        action = functools.partial(_exit, job)
    return Handler(current.script() if own is None else own.script, action)


def _exit(job: JobContext, number: int, _frame: FrameType | None) -> None:
    log.warning("job '%s': %s ends the job: it has no handler of it", job.name, name_of(number))
    raise SystemExit(128 + number)


@TABLE.call("os", "fork")
def fork(original: Callable[[], int]) -> int:  # see PROCESS_CODE
    """While a job forks, the others enter no op and hold no lock of a module, and signals wait.

    What a handler raises in a callback of os.register_at_fork is lost."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, process_signals.taken())
    looks, pause = fork_locks.Looks(), _FIRST_PAUSE_S
    try:
        while True:
            with _others_outside_ops():
                if looks.may_fork():
                    return looks.fork(original)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _others_outside_ops() -> Iterator[None]:
    """A lock of torch that another job holds inside an op would never be released in the child. Jobs fork one at a
    time."""
    process, forking = os.getpid(), program()
    with _forks:
        others = [job for job in _with_handles() if job is not forking]
        try:
            for job in others:
                job.handle.set_forking(True)
            if others:
                job_context.wait_outside_ops(others)
            yield
        finally:
            for job in others if os.getpid() == process else ():
                job.handle.set_forking(False)


_here = threading.local()  # what the thread that forks is


def _before_fork() -> None:
    """Until the child has its own handlers, signals that it is sent wait."""
    _here.forking = program()
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, process_signals.taken())


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _become_program() -> None:
    """Called in a forked child: the handlers of the job that forked are those of the process."""
    for number, handlers in by_signal.items():
        if _here.forking in handlers:
            process_signals.set_handler(number, handlers[_here.forking].action)
    for each in (by_signal, _jobs, running, _stops_after):
        each.clear()
    lock._at_fork_reinit()  # type: ignore[attr-defined]
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_become_program)
