"""Signals that end the program while jobs run: Ctrl-C, SIGTERM, and those that mean the same, see
process_signals.ENDING. Python runs signal handlers in the main thread; in other threads, the functions below leave them
alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from torchshare.isolation import process_signals

CHECK_S = 0.05  # how often the main thread checks for signals while it waits
_EXIT_CODE = 128  # plus the signal's number
_lock = threading.Lock()  # guards _open
_open = 0


class Stops:
    """The signals that arrived inside `deferred` and that no job has handled."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, according to the first signal; 0 without one."""
        return _EXIT_CODE + self._seen[0] if self._seen else 0

    def add(self, number: int, _frame: FrameType | None = None) -> bool:
        if not _counts(number):
            return False
        self._seen.append(number)
        process_signals.note(number)
        return True


@contextmanager
def deferred(*, forget: bool = False) -> Iterator[Stops]:
    """Counts signals instead of handling them. At the end, passes the first on, unless `forget`."""
    stops = Stops()
    in_main = process_signals.is_main_thread()
    if in_main:
        process_signals.add_taker(stops.add)
    try:
        if in_main:
            _counting(stops, _take_all)
        yield stops
    finally:
        if in_main:
            if _open == 0 and process_signals.count_takers() == 1:  # the last runtime may have been closed inside
                _counting(stops, process_signals.give_back)
            process_signals.remove_taker(stops.add)
    if stops.count and not forget:
        process_signals.pass_on(stops.exit_code - _EXIT_CODE)


def _take_all() -> None:
    process_signals.take(number for number in (*process_signals.ENDING, int(signal.SIGINT)) if _counts(number))


def _counts(number: int) -> bool:
    """Whether the signal ends the program. Ignored ones stay ignored; of those that the program handles, Ctrl-C and
    SIGTERM end it."""
    handler = process_signals.handler_of_program(number)
    if callable(handler):
        return number in (signal.SIGINT, signal.SIGTERM)
    return handler is signal.SIG_DFL and number in (*process_signals.ENDING, signal.SIGINT)


def _counting(stops: Stops, change_handlers: Callable[[], None]) -> None:
    """Changes handlers. A signal whose handler raises meanwhile is counted in `stops`."""
    while True:
        try:
            change_handlers()
            return
        except KeyboardInterrupt:
            stops.add(signal.SIGINT)
        except SystemExit as error:
            stops.add(int(error.code or 0) - _EXIT_CODE)


def install() -> None:
    """Called once per started runtime. SIGTERM and its like then end the program as `sys.exit(143)` does, so that jobs
    unwind and files are written, unless the program handles them already."""
    global _open
    with _lock:
        _open += 1
    if process_signals.is_main_thread():
        by_default = [n for n in process_signals.ENDING if process_signals.handler_of_program(n) is signal.SIG_DFL]
        process_signals.take(by_default)


def uninstall() -> None:
    """Called once per started runtime; the last call restores the handlers."""
    global _open
    with _lock:
        _open -= 1
        is_last = _open == 0
    if is_last:
        process_signals.forget()
        process_signals.in_main_thread(_restore, wait=False)


def _restore() -> None:
    if _open == 0 and process_signals.count_takers() == 0:
        process_signals.give_back()


def _leave_to_parent() -> None:
    """Called in a forked child: the open runtimes are its parent's."""
    global _open
    _open = 0


os.register_at_fork(after_in_child=_leave_to_parent)


def terminating() -> bool:
    """Whether SIGTERM, or one of its like, is why the runtimes are closed."""
    return process_signals.terminating()
