"""torch.compile inside jobs: one compilation at a time, and the compiling job is neither gated nor suspended.

Dynamo holds a lock while it compiles, but the backward pass is compiled outside it, and Inductor's settings are
process-wide. Jobs take turns at both, and at all tracing (see `tracing`), with one lock, so that they cannot deadlock.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchshare import _C
from torchshare.context import current, interpreter_lock
from torchshare.isolation import cuda
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table
from torchshare.torch_versions import is_one_of

log = logging.getLogger("torchshare")

TABLE = Table()


@functools.cache
def turns() -> _C.Turns:
    """The lock with which jobs take turns: around dynamo's, which code that runs meanwhile may hold."""
    from torch._dynamo.convert_frame import compile_lock

    made = _C.Turns(compile_lock)
    os.register_at_fork(after_in_child=made.forget_others)
    return made


@TABLE.value("torch._dynamo.convert_frame", "compile_lock")
def _compile_lock(_dynamos: Any) -> _C.Turns:
    """Jobs take turns at compiling and tracing."""
    return turns()


@TABLE.call("torch._inductor.compile_fx", "_compile_fx_inner")
def in_turn(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Jobs take turns at compiling and tracing."""
    with turns():
        return original(*args, **kwargs)


TABLE.call("torch._inductor.cudagraph_trees", "get_container")(cuda.outside_of_jobs('mode="reduce-overhead"'))


@TABLE.at_start
def _draw_from_the_jobs_generator(patches: Patches) -> None:
    """With this check, the first call of a compiled function runs inside a TorchDispatchMode, where random ops draw
    from the process's generator. Forced: what is assigned may be the thread's own."""
    from torch._functorch import config

    patches.replace(config._config["check_custom_op_aliasing"], "env_value_force", False)  # type: ignore[attr-defined]


_here = threading.local()
_HAS_LOCKED_CACHE = is_one_of(torch.__version__, ">=2.13")


@contextlib.contextmanager
def in_eager() -> Iterator[None]:
    """Compiled functions that the calling thread calls run in eager. While a runtime is open; torch's own
    `set_stance("force_eager")` is for all threads."""
    former, _here.in_eager = getattr(_here, "in_eager", False), True
    try:
        yield
    finally:
        _here.in_eager = former


@TABLE.call("torch._dynamo.eval_frame", "_callback_from_stance")
def _callback_from_stance(original: Callable[[Any], Any], given: Any) -> Any:
    """A thread can run compiled functions in eager while others run them compiled. Without the GIL, before torch 2.13,
    a job can run none: dynamo's cache of compiled code has no lock there."""
    if getattr(_here, "in_eager", False):
        return None
    job = current.job()
    if job is not None and callable(given) and not interpreter_lock.is_on() and not _HAS_LOCKED_CACHE:
        raise RuntimeError(
            f"job '{job.name}': torch.compile in a job needs torch 2.13 or the GIL, got torch {torch.__version__} and "
            "a Python without the GIL; set PYTHON_GIL=1, or use job.compiled_step"
        )
    return original(given)


@TABLE.call("torch._dynamo", "reset", "reset_code_caches")
def _reset(original: Callable[[], None]) -> None:
    """A job drops no compiled code: other jobs may be running it."""
    job = current.job()
    if job is None:
        original()
    else:
        log.warning("job '%s': torch._dynamo.%s() does nothing in a job", job.name, original.__name__)
