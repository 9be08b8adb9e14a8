"""Routes process-wide functions to the calling job's own state: random numbers and sleep.

The op hook makes ops draw from the job's generator. This module covers calls that run no op: `torch.manual_seed` and
the like, Python's `random`, `numpy.random`, and `time.sleep`. Installed while a Runtime is open; affects jobs' threads
and those that they start. Names that modules have bound before, as in `from random import random`, are routed, too;
other references to functions of `random`, `numpy.random` and `time`, such as default arguments, are not.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.isolation import (
    accumulation,
    agreement,
    collectives,
    compiling,
    cuda,
    environment,
    forward_hook,
    gradient_sync,
    hooks,
    interrupt,
    job_signals,
    kernels,
    numpy_random,
    process_groups,
    replacements,
    settings,
    shared_changes,
    steps,
    threads,
    torch_config,
    tracing,
)
from torchshare.isolation.patches import Patches

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_lock = threading.Lock()  # guards the variables below
_open = 0
_cuda_is_routed = False
_patches = Patches()
_replace = _patches.replace
_turns: _C.Turns | None = None  # jobs take turns at compiling and tracing


def install() -> None:
    """Called once per Runtime. The first one installs the patches, the first one on a GPU those of CUDA."""
    global _open, _cuda_is_routed
    with _lock, _patches.all_or_none():
        if _open == 0:
            _route()
        routes_cuda = not _cuda_is_routed and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if routes_cuda:
            cuda.route(_patches)
        _cuda_is_routed = _cuda_is_routed or routes_cuda
        _open += 1


def _route() -> None:
    global _turns
    _route_python_random()
    numpy_random.route(_patches)
    _replace(torch.random, "default_generator", _RoutedGenerator(torch.default_generator))
    _patches.wrap(time, "sleep", _routed_sleep)
    _turns = compiling.route(_replace)
    tracing.route(_replace, _turns)
    interrupt.route(_replace)
    job_signals.route(_patches)
    steps.route(_patches)
    settings.route(_patches)
    torch_config.route(_patches)
    environment.route(_patches)
    hooks.route(_patches)
    process_groups.route(_patches)
    gradient_sync.route(_patches)
    collectives.route(_patches)
    accumulation.route(_patches)
    replacements.route(_patches)
    kernels.route(_patches)
    threads.route(_patches)


def uninstall() -> None:
    """Called once per Runtime. The last one restores everything."""
    global _open, _cuda_is_routed
    with _lock:
        _open -= 1
        if _open == 0:
            _cuda_is_routed = False
            assert _turns is not None
            forward_hook.remove_ended(_turns)
            _patches.undo()


def expect_job(job: JobContext, is_script: bool) -> None:
    """Called before a job's thread can run."""
    shared_changes.expect(job, is_script)  # may refuse it
    agreement.expect(job)
    job_signals.expect(job)


def forget_job(job: JobContext) -> None:
    """Called for an expected job that will not run."""
    job_signals.leave(job)
    agreement.leave(job)
    shared_changes.leave(job)


def leave_job(job: JobContext) -> None:
    """Called at the end of a job, in its thread."""
    agreement.leave(job)
    process_groups.leave(job)
    hooks.leave(job)
    replacements.leave(job)
    job.accumulation.end_job()
    if _turns is not None:
        tracing.leave(_turns)
        forward_hook.remove_ended(_turns)


def before_forward(job: JobContext, look: forward_hook.Look) -> AbstractContextManager[bool]:
    """See forward_hook.registered. In a job."""
    assert _turns is not None
    return forward_hook.registered(_turns, job, look)


def _forget_other_threads() -> None:
    """Called in a forked child."""
    if _turns is not None:
        _turns.forget_others()


os.register_at_fork(after_in_child=_forget_other_threads)


class _RoutedGenerator:
    """Replaces torch.random.default_generator; forwards to the generator of the calling job."""

    def __init__(self, default: torch.Generator) -> None:
        self._default = default

    def __getattr__(self, name: str) -> Any:
        job = current.owner()
        return getattr(self._default if job is None else job.handle.generator, name)


class _RoutedRandom(random.Random):
    """The class of Python's hidden global instance; all its other methods call these six."""

    def random(self) -> float:
        job = current.owner()
        return super().random() if job is None else job.random.random()

    def getrandbits(self, k: int, /) -> int:
        job = current.owner()
        return super().getrandbits(k) if job is None else job.random.getrandbits(k)

    def seed(self, *args: Any, **kwargs: Any) -> None:
        job = current.owner()
        super().seed(*args, **kwargs) if job is None else job.random.seed(*args, **kwargs)

    def getstate(self) -> tuple[Any, ...]:
        job = current.owner()
        return super().getstate() if job is None else job.random.getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        job = current.owner()
        super().setstate(state) if job is None else job.random.setstate(state)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        job = current.owner()
        return super().gauss(mu, sigma) if job is None else job.random.gauss(mu, sigma)


def _route_python_random() -> None:
    instance = random._inst
    _replace(instance, "__class__", _RoutedRandom)
    for name in random.__all__:
        if getattr(getattr(random, name), "__self__", None) is instance:
            _patches.wrap(random, name, functools.partial(_of_instance, name=name))


def _of_instance(_original: Any, name: str) -> Any:
    return getattr(random._inst, name)


def _routed_sleep(original: Callable[[float], None]) -> Callable[[float], None]:
    @functools.wraps(original)
    def sleep(seconds: float, /) -> None:
        job = current.job()
        if job is None or job.is_ending or not 0 <= seconds < float("inf"):
            original(seconds)  # raises for an invalid time
        else:
            job_signals.sleep(job, seconds)

    return sleep
