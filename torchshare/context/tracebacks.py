"""Tracebacks of jobs that have ended: frames refer to the variables and the closures of functions, such as a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

_NO_COLUMNS = bytes([0x80 | 13 << 3 | 7, 0]) * 16  # CPython's Objects/locations.md: all on the code's first line


def drop_frames(error: BaseException) -> None:
    """Replaces the frames in the tracebacks of `error`, and of the exceptions that it came from, by frames without
    variables. What is printed stays the same, but for the marks below a line."""
    for each in _with_origins(error):
        each.__traceback__ = _without_frames(each.__traceback__)


def _with_origins(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]  # of an ExceptionGroup
            yield each


def _without_frames(traceback: TracebackType | None) -> TracebackType | None:
    places = []
    while traceback is not None:
        places.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    for code, line in reversed(places):
        traceback = TracebackType(traceback, _frame_at(code, line), 0, line)
    return traceback


def _frame_at(code: CodeType, line: int) -> FrameType:
    """The frame of a generator that has not begun, which refers to no caller."""
    known: dict[str, Any] = {"co_filename": code.co_filename, "co_name": code.co_name, "co_firstlineno": line}
    if sys.version_info >= (3, 11):
        known |= {"co_qualname": code.co_qualname, "co_linetable": _NO_COLUMNS}
    frame: FrameType = FunctionType(_nothing.__code__.replace(**known), {})().gi_frame
    return frame


def _nothing() -> Iterator[None]:
    yield
