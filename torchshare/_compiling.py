"""torch.compile inside jobs: one compilation at a time, and nothing holds up the job that is at it.

Dynamo has one lock for its part; the backward pass is compiled outside of it, and Inductor's settings are process-wide.
Here, that lock is taken for both. The job that has it passes the gate as it likes: were it suspended, or made to wait
for a higher job, then every other job that has something to compile would wait with it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torchshare import _C, _current

Replace = Callable[[Any, str, object], None]

_INDUCTOR = "torch._inductor.compile_fx"
_LOOK_S = 0.05  # at whether the job that waits for the lock was cancelled


def route(replace: Replace) -> None:
    """Puts our lock in the place of dynamo's, and before Inductor as soon as that is there."""
    from torch._dynamo import convert_frame
    from torch._functorch import config

    # On the first call of a compiled function it has a mode look for custom ops that are registered wrongly, and ops
    # inside a mode draw from the process's random engine (see the README's limits).
    replace(config, "check_custom_op_aliasing", False)
    replace(convert_frame, "compile_lock", CompileLock(convert_frame.compile_lock, replace))


class CompileLock:
    """Dynamo's lock, as jobs take it. A thread may take it again."""

    def __init__(self, lock: Any, replace: Replace) -> None:
        self._lock = lock
        self._replace = replace
        # Of the thread that has it:
        self._depth = 0
        self._ungated: _C.Ungated | None = None
        self._guards_inductor = False

    def __enter__(self) -> None:
        job = _current.job()
        if job is None:
            self._lock.acquire()
        else:
            while not self._lock.acquire(timeout=_LOOK_S):
                job._native.checkpoint()
        self._depth += 1
        if self._depth == 1:
            self._ungated = _C.Ungated()
            self._ungated.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        ungated = self._ungated if self._depth == 0 else None
        inductor = sys.modules.get(_INDUCTOR)
        if inductor is not None and not self._guards_inductor:  # it was imported by the first compilation
            self._guards_inductor = True
            self._replace(inductor, "_compile_fx_inner", _locked(inductor._compile_fx_inner, self))
        self._lock.release()
        if ungated is not None:
            ungated.__exit__(*exception)


def _locked(compile_inner: Callable[..., Any], lock: CompileLock) -> Callable[..., Any]:
    @functools.wraps(compile_inner)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return compile_inner(*args, **kwargs)

    return locked
