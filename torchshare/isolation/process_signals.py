"""The process's signals while jobs run: one handler stands in for the program's, and asks in turn the jobs that handle
the signal (see job_signals), the code that counts signals (see runtime.signals), and the program's own handler."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

Taker = Callable[[int, FrameType | None], bool]  # says whether it has taken the signal

ENDING = {
    int(getattr(signal, name))
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU")
    if hasattr(signal, name)
}
"""The signals that end a program without a handler, and that others send it: all mean what SIGTERM does."""

set_handler = signal.signal  # not the one of job_signals
_get_handler = signal.getsignal
_replaced: dict[int, Any] = {}  # the program's handlers
_jobs: list[Taker] = []  # one at most
_takers: list[Taker] = []
_terminating = False
_IN_MAIN_S = 1.0


def is_main_thread() -> bool:
    """Whether the calling thread is the one in which Python runs handlers."""
    return threading.get_ident() == threading._main_thread.ident  # type: ignore[attr-defined,no-any-return]


def ask_first(taker: Taker) -> None:
    """Sets the taker that is asked for the jobs, before all others, also in forked processes."""
    _jobs[:] = [taker]


def add_taker(taker: Taker) -> None:
    """Asked before those that were added earlier."""
    _takers.append(taker)


def remove_taker(taker: Taker) -> None:
    if taker in _takers:  # not in a forked process
        _takers.remove(taker)


def count_takers() -> int:
    return len(_takers)


def handler_of_program(number: int) -> Any:
    """The program's own handler, as `signal.getsignal` returns it."""
    return _replaced[number] if number in _replaced else _get_handler(number)


def set_handler_of_program(number: int, handler: Any) -> Any:
    """`signal.signal` of the program. In the main thread."""
    if number not in _replaced or not (callable(handler) or handler in (signal.SIG_DFL, signal.SIG_IGN)):
        return set_handler(number, handler)
    former, _replaced[number] = _replaced[number], handler
    return former


def take(numbers: Iterable[int]) -> None:
    """Stands in for the program's handlers, until `give_back`. In the main thread."""
    for number in numbers:
        if number not in _replaced:
            _replaced[number] = _get_handler(number)
            set_handler(number, _arrived)


def is_taken(number: int) -> bool:
    return number in _replaced


def taken() -> list[int]:
    return list(_replaced)


def give_back() -> None:
    """Restores the program's handlers. In the main thread."""
    for number in list(_replaced):
        if _get_handler(number) is _arrived:
            handler = _replaced[number]
            set_handler(number, signal.SIG_DFL if handler is None else handler)
        _replaced.pop(number, None)


def _arrived(number: int, frame: FrameType | None) -> None:
    if not any(taker(number, frame) for taker in _jobs):
        pass_on(number, frame)


def pass_on(number: int, frame: FrameType | None = None) -> None:
    """Does what a signal does that no job has handled."""
    if any(taker(number, frame) for taker in reversed(_takers)):
        return
    handler = handler_of_program(number)
    if callable(handler):
        handler(number, frame)
    elif handler is signal.SIG_DFL and number in (*ENDING, signal.SIGINT):
        terminate(number)


def note(number: int) -> None:
    """A signal has come that ends the program."""
    global _terminating
    _terminating = _terminating or number in ENDING


def forget() -> None:
    """What was noted has been done."""
    global _terminating
    _terminating = False


def terminating() -> bool:
    return _terminating


def terminate(number: int, _frame: FrameType | None = None) -> None:
    note(number)
    raise SystemExit(128 + number)


_calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()


def _run_calls(_unused: object) -> int:
    try:
        while True:
            _calls.get_nowait()()
    except queue.Empty:
        return 0
    except KeyboardInterrupt:  # a Ctrl-C that came here would be lost
        signal.raise_signal(signal.SIGINT)
        return 0


_run_calls_in_c = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_calls)


def in_main_thread(call: Callable[[], object], *, wait: bool = True) -> bool:
    """Calls it in the main thread, as soon as that runs Python. With `wait`, says whether it has within a second."""
    if is_main_thread():
        call()
        return True
    done = threading.Event()

    def run() -> None:
        with contextlib.suppress(Exception):
            call()
        done.set()

    _calls.put(run)
    ctypes.pythonapi.Py_AddPendingCall(_run_calls_in_c, None)
    return not wait or done.wait(_IN_MAIN_S)


def _leave_to_parent() -> None:
    """Called in a forked child, whose main thread is the one that forked."""
    _takers.clear()
    give_back()


os.register_at_fork(after_in_child=_leave_to_parent)
