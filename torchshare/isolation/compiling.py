"""torch.compile inside jobs: one compilation at a time, and the compiling job is neither gated nor suspended.

Dynamo holds a lock while it compiles, but the backward pass is compiled outside it, and Inductor's settings are
process-wide. Jobs take turns at both, and at all tracing (see `tracing`), with one lock, so that they cannot deadlock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torchshare import _C
from torchshare.context import current
from torchshare.isolation import cuda

log = logging.getLogger("torchshare")

Replace = Callable[[Any, str, object], None]


def route(replace: Replace) -> _C.Turns:
    """Replaces dynamo's lock by ours, and takes it around Inductor once that is imported. Returns our lock."""
    import torch._dynamo
    from torch._dynamo import convert_frame, eval_frame
    from torch._functorch import config

    # With this check, the first call of a compiled function runs inside a TorchDispatchMode, where random ops draw from
    # the process's generator (see the README's limits). Forced: what is assigned may be the thread's own.
    replace(config._config["check_custom_op_aliasing"], "env_value_force", False)  # type: ignore[attr-defined]
    # Of modules that are imported by the first compilation that needs them.
    unpatched: dict[str, tuple[str, cuda.Wrap]] = {
        "torch._inductor.compile_fx": ("_compile_fx_inner", lambda function: take_turns(turns, function)),
        "torch._inductor.cudagraph_trees": ("get_container", cuda.outside_of_jobs('mode="reduce-overhead"')),
    }

    def patch_imported() -> None:
        for name in unpatched.keys() & sys.modules.keys():
            attribute, wrap = unpatched.pop(name)
            replace(sys.modules[name], attribute, wrap(getattr(sys.modules[name], attribute)))

    turns = _C.Turns(convert_frame.compile_lock, patch_imported)
    replace(convert_frame, "compile_lock", turns)
    for name in ("reset", "reset_code_caches"):
        replace(torch._dynamo, name, _outside_of_jobs(getattr(torch._dynamo, name)))
    replace(eval_frame, "_callback_from_stance", _eager_by_thread(eval_frame._callback_from_stance))
    return turns


_here = threading.local()


@contextlib.contextmanager
def in_eager() -> Iterator[None]:
    """Compiled functions that the calling thread calls run in eager. While a runtime is open; torch's own
    `set_stance("force_eager")` is for all threads."""
    former, _here.in_eager = getattr(_here, "in_eager", False), True
    try:
        yield
    finally:
        _here.in_eager = former


def _eager_by_thread(callback_from_stance: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(callback_from_stance)
    def callback(given: Any) -> Any:
        return None if getattr(_here, "in_eager", False) else callback_from_stance(given)

    return callback


def take_turns(lock: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Holds `lock` around `function`."""

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return locked


def _outside_of_jobs(function: Callable[[], None]) -> Callable[[], None]:
    """`function` drops code that other jobs may be running, so in a job it only logs a warning."""

    @functools.wraps(function)
    def guarded() -> None:
        job = current.job()
        if job is None:
            function()
        else:
            log.warning("job '%s': torch._dynamo.%s() does nothing in a job", job.name, function.__name__)

    return guarded
