"""Functions whose work is not done when they return."""

from __future__ import annotations

import functools
import inspect

_COROUTINE, _GENERATOR = "a coroutine function", "a generator function"
_ASYNC_GENERATOR = "an async generator function"
_PARTS = "return the whole answer, or serve a function that computes one part of it"
WHOLE_ANSWER = {
    _COROUTINE: "run the model in a plain function, and await it with asyncio.to_thread",
    _GENERATOR: _PARTS,
    _ASYNC_GENERATOR: f"{_PARTS}, and await it with asyncio.to_thread",
}
"""What to write instead where an answer is expected, by kind."""


def deferred_kind(function: object) -> str | None:
    """Which kind it is; None if calling it does its work, as far as can be seen: a decorator hides it."""
    while isinstance(function, functools.partial):
        function = function.func
    for each in (function, inspect.getattr_static(type(function), "__call__", None)):
        if inspect.iscoroutinefunction(each):
            return _COROUTINE
        if inspect.isgeneratorfunction(each):
            return _GENERATOR
        if inspect.isasyncgenfunction(each):
            return _ASYNC_GENERATOR
    return None
