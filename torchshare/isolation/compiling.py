"""torch.compile inside jobs: one compilation at a time, and nothing holds up the job that is at it.

Dynamo has one lock for its part; the backward pass is compiled outside of it, and Inductor's settings are process-wide.
Here, that lock is taken for both, and for all tracing (see `_tracing`). The job that has it passes the gate freely: if
it were suspended, or had to wait for a higher job, every other job that has something to compile would wait with it.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchshare import _C
from torchshare.context import current

log = logging.getLogger("torchshare")

Replace = Callable[[Any, str, object], None]

_INDUCTOR = "torch._inductor.compile_fx"
_LOOK_S = 0.05  # at whether the job that waits for the lock was cancelled


def route(replace: Replace) -> CompileLock:
    """Puts our lock in the place of dynamo's, and before Inductor as soon as that is there. Returns it."""
    import torch._dynamo
    from torch._dynamo import convert_frame
    from torch._functorch import config

    # On the first call of a compiled function it has a mode look for custom ops that are registered wrongly, and ops
    # inside a mode draw from the process's random engine (see the README's limits).
    replace(config, "check_custom_op_aliasing", False)
    lock = CompileLock(convert_frame.compile_lock, replace)
    replace(convert_frame, "compile_lock", lock)
    for name in ("reset", "reset_code_caches"):
        replace(torch._dynamo, name, _outside_of_jobs(getattr(torch._dynamo, name)))
    return lock


class CompileLock:
    """Dynamo's lock, as jobs take it. A thread may take it again."""

    def __init__(self, lock: Any, replace: Replace) -> None:
        self._lock = lock
        self._replace = replace
        # Of the thread that has it:
        self._owner: int | None = None
        self._depth = 0
        self._ungated: _C.Ungated | None = None
        self._guards_inductor = False

    def is_held_elsewhere(self) -> bool:
        """By another thread."""
        return self._owner not in (None, threading.get_ident())

    def __enter__(self) -> None:
        job = current.job()
        while not self._take(-1 if job is None else _LOOK_S):
            assert job is not None  # without a time-out, the lock is taken
            job.handle.checkpoint()

    def _take(self, timeout: float) -> bool:
        """Not cut short by a cancellation, nor is what follows in `__enter__`: see `_interrupt.PROCESS_CODE`."""
        if not self._lock.acquire(timeout=timeout):
            return False
        self._depth += 1
        if self._depth == 1:
            self._owner = threading.get_ident()
            self._ungated = _C.Ungated()
            self._ungated.__enter__()
        return True

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        ungated = self._ungated if self._depth == 0 else None
        inductor = sys.modules.get(_INDUCTOR)
        if inductor is not None and not self._guards_inductor:  # it was imported by the first compilation
            self._guards_inductor = True
            self._replace(inductor, "_compile_fx_inner", take_turns(self, inductor._compile_fx_inner))
        if self._depth == 0:
            self._owner = None
        self._lock.release()
        if ungated is not None:
            ungated.__exit__(*exception)


def take_turns(lock: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, one thread at a time."""

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return locked


def _outside_of_jobs(function: Callable[[], None]) -> Callable[[], None]:
    """It drops what other jobs may be running; in a job it only says so."""

    @functools.wraps(function)
    def guarded() -> None:
        job = current.job()
        if job is None:
            function()
        else:
            log.warning("job '%s': torch._dynamo.%s() does nothing in a job", job.name, function.__name__)

    return guarded
