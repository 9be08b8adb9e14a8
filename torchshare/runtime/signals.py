"""Ctrl-C and SIGTERM while jobs run. Python runs signal handlers in the main thread; in other threads, the functions
below leave them alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

CHECK_S = 0.05  # how often the main thread checks for signals while it waits
_EXIT_CODE = 128  # plus the signal's number
_lock = threading.Lock()  # guards _open
_open = 0
_terminating = False  # SIGTERM has come since the first open runtime was started


class Stops:
    """The signals that arrived inside `deferred`."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, according to the first signal; 0 without one."""
        return _EXIT_CODE + self._seen[0] if self._seen else 0

    def add(self, number: int, _frame: FrameType | None = None) -> None:
        self._seen.append(number)
        _note(number)


@contextmanager
def deferred(*, forget: bool = False) -> Iterator[Stops]:
    """Counts signals instead of handling them. At the end, calls the former handler for the first, unless `forget`."""
    stops = Stops()
    former = _handlers() if threading.current_thread() is threading.main_thread() else {}
    try:
        _set(dict.fromkeys(former, stops.add), stops)
        yield stops
    finally:
        if _open == 0:  # the last runtime was closed inside the block
            former = {n: signal.SIG_DFL if handler is _terminate else handler for n, handler in former.items()}
        _set(former, stops)
    if stops.count and not forget:
        first = stops.exit_code - _EXIT_CODE
        handler = former[first]
        (handler if callable(handler) else _terminate)(first, None)


def _handlers() -> dict[int, Any]:
    """The handlers that can be restored; ignored signals stay ignored."""
    found = {int(number): signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    return {n: handler for n, handler in found.items() if callable(handler) or handler is signal.SIG_DFL}


def _set(handlers: Mapping[int, Any], stops: Stops) -> None:
    """Sets all handlers. A signal whose handler raises meanwhile is counted in `stops`."""
    while True:
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            return
        except KeyboardInterrupt:
            stops.add(signal.SIGINT)
        except SystemExit:
            stops.add(signal.SIGTERM)


def install() -> None:
    """Called once per started runtime. SIGTERM then ends the program as `sys.exit(143)` does, so that jobs unwind and
    files are written, unless the program handles it already."""
    global _open
    with _lock:
        _open += 1
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def uninstall() -> None:
    """Called once per started runtime; the last call restores SIGTERM."""
    global _open, _terminating
    with _lock:
        _open -= 1
        is_last = _open == 0
        _terminating = _terminating and not is_last
    if (
        is_last
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _terminate
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def terminating() -> bool:
    """Whether SIGTERM is why the runtimes are closed."""
    return _terminating


def _note(number: int) -> None:
    global _terminating
    if number == signal.SIGTERM:
        _terminating = True


def _terminate(number: int, _frame: FrameType | None) -> None:
    _note(number)
    raise SystemExit(_EXIT_CODE + number)
