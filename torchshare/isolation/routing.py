"""Routes process-wide functions to the calling job's own state: random numbers and sleep.

The op hook makes ops draw from the job's generator. This module covers calls that run no op: `torch.manual_seed` and
the like, Python's `random`, `numpy.random`, and `time.sleep`. Installed while a Runtime is open; affects jobs' threads
and those that they start. Names that modules have bound before, as in `from random import random`, are routed, too;
other references to functions of `random`, `numpy.random` and `time`, such as default arguments, are not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.device import devices
from torchshare.isolation import (
    accumulation,
    agreement,
    children,
    collectives,
    collector,
    compiling,
    cuda,
    environment,
    forked_random,  # noqa: F401  # its callbacks of forks
    forward_hook,
    gradient_sync,
    hooks,
    interrupt,
    job_faults,
    job_signals,
    job_timers,
    kernels,
    numpy_random,
    own_settings,
    process_groups,
    process_pipes,
    programs,
    replacements,
    settings,
    shared_changes,
    steps,
    threads,
    torch_config,
    tracing,
)
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

TABLE = Table()

_MODULES: list[Any] = [
    *(numpy_random, compiling, tracing, interrupt, job_signals, job_timers, job_faults, steps, own_settings, settings),
    *(torch_config, environment, hooks, accumulation, replacements, kernels, threads, collector),
    *(process_pipes, programs, children),
    *((process_groups, gradient_sync, collectives) if torch.distributed.is_available() else ()),
]
TABLES = [TABLE, *(module.TABLE for module in _MODULES)]
"""In the order in which they are applied."""

_lock = threading.Lock()  # guards the variables below
_open = 0
_cuda_is_routed = False
_patches = Patches()


def install() -> None:
    """Called once per Runtime. The first one applies the tables, the first one on a GPU that of CUDA."""
    global _open, _cuda_is_routed
    with _lock:
        routes_cuda = not _cuda_is_routed and devices.CUDA.is_started()
        _patches.apply([*(TABLES if _open == 0 else ()), *((cuda.TABLE,) if routes_cuda else ())])
        _cuda_is_routed = _cuda_is_routed or routes_cuda
        _open += 1


def uninstall() -> None:
    """Called once per Runtime. The last one restores everything."""
    global _open, _cuda_is_routed
    with _lock:
        _open -= 1
        if _open == 0:
            _cuda_is_routed = False
            forward_hook.remove_ended()
            _patches.undo()


def expect_job(job: JobContext, is_script: bool) -> None:
    """Called before a job's thread can run."""
    shared_changes.expect(job, is_script)  # may refuse it
    agreement.expect(job)
    job_signals.expect(job)
    collector.expect(job)


def forget_job(job: JobContext) -> None:
    """Called for an expected job that will not run."""
    collector.leave(job)
    job_signals.leave(job)
    agreement.leave(job)
    shared_changes.leave(job)


def leave_job(job: JobContext) -> None:
    """Called at the end of a job, in its thread."""
    agreement.leave(job)
    process_groups.leave(job)
    hooks.leave(job)
    replacements.leave(job)
    collector.leave(job)
    job.accumulation.end_job()
    tracing.leave()
    forward_hook.remove_ended()


@TABLE.at_start
def _unroute_generator(patches: Patches) -> None:
    patches.at_undo(_C.unroute_generator)


@TABLE.value("torch", "default_generator")
def _routed_generator(generator: torch.Generator) -> torch.Generator:
    """Its methods are those of the job's generator; in a thread that serves its requests, of the thread's."""
    _C.route_generator(generator, current.generator)
    return generator


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


_WHY = "Random numbers are drawn from the job's own state."
_METHODS = [name for name in random.__all__ if getattr(getattr(random, name), "__self__", None) is random._inst]
TABLE.value("random:_inst", "__class__", why=_WHY)(lambda _: _RoutedRandom)


@TABLE.value("random", *_METHODS, why=_WHY, everywhere=True)
def _of_instance(original: Any) -> Any:
    return getattr(random._inst, original.__name__)


@TABLE.call("time", "sleep", everywhere=True)
def _sleep(original: Callable[[float], None], seconds: float, /) -> None:
    """A job that sleeps can be cancelled, and lets lower jobs run."""
    job = current.job()
    if job is None or job.is_ending or not 0 <= seconds < float("inf"):
        original(seconds)  # raises for an invalid time
    else:
        job_signals.sleep(job, seconds)
