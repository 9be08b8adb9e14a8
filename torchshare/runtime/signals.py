"""Ctrl-C and SIGTERM while jobs run. Python calls signal handlers in the main thread; elsewhere, all of this does
nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_EXIT_CODE = 128  # plus the signal's number
_lock = threading.Lock()  # guards _open
_open = 0


class Stops:
    """The signals that came meanwhile."""

    def __init__(self) -> None:
        self._seen: list[int] = []

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, by the first that came; 0 where none did."""
        return _EXIT_CODE + self._seen[0] if self._seen else 0

    def add(self, number: int, _frame: FrameType | None = None) -> None:
        self._seen.append(number)


@contextmanager
def deferred(*, forget: bool = False) -> Iterator[Stops]:
    """Signals that come meanwhile are counted. At the end, the former handler hears of the first, unless `forget`."""
    stops = Stops()
    former: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in map(int, (signal.SIGTERM, signal.SIGINT)):
                handler = signal.getsignal(number)
                if callable(handler) or handler is signal.SIG_DFL:
                    former[number] = handler
                    signal.signal(number, stops.add)
        yield stops
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if stops.count and not forget:
        first = stops.exit_code - _EXIT_CODE
        handler = former[first]
        (handler if callable(handler) else _terminate)(first, None)


def install() -> None:
    """Once per started runtime: SIGTERM ends the program as `sys.exit(143)` does, so that jobs are unwound and files
    are written, unless the program handles it already."""
    global _open
    with _lock:
        _open += 1
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def uninstall() -> None:
    """Once per started runtime; the last one gives SIGTERM back."""
    global _open
    with _lock:
        _open -= 1
        is_last = _open == 0
    if (
        is_last
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _terminate
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_EXIT_CODE + number)
