"""torch.cuda inside jobs: synchronization with the job's own streams, and the job's own random state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchshare.context import current
from torchshare.isolation.patches import Patches

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def route(patches: Patches) -> None:
    """Makes calls that affect the whole device or process affect the calling job only. CUDA must be initialized, which
    creates the default generators."""
    patches.wrap(torch.cuda, "synchronize", _routed_synchronize)
    patches.replace(torch.cuda, "default_generators", _RoutedGenerators(torch.cuda.default_generators))
    patches.replace(torch.cuda.Stream, "__new__", _routed_stream(torch.cuda.Stream.__new__))
    # `graph` first: it would make the job's stream the one that all captures of the process use.
    for cls, name in ((torch.cuda.graph, "__init__"), (torch.cuda.CUDAGraph, "capture_begin")):
        patches.replace(cls, name, outside_of_jobs("torch.cuda.graph")(getattr(cls, name)))


def _routed_synchronize(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def synchronize(device: Any = None) -> None:
        job = current.job()
        if job is None or not _is_current(device):
            original(device)
        else:
            job.handle.synchronize()

    return synchronize


def _is_current(device: Any) -> bool:
    return device is None or torch.device(device).index in (None, torch.cuda.current_device())


def _routed_stream(original: Callable[..., torch.cuda.Stream]) -> Callable[..., torch.cuda.Stream]:
    @functools.wraps(original)
    def new(cls: type[torch.cuda.Stream], device: Any = None, priority: int = 0, **kwargs: Any) -> torch.cuda.Stream:
        job = current.job()
        handle = 0
        if job is not None and cls is torch.cuda.Stream and not kwargs and priority == 0 and _is_current(device):
            handle = job.handle.open_stream()
        if handle:
            return original(cls, stream_ptr=handle)
        return original(cls, device, priority, **kwargs)

    return new


def outside_of_jobs(what: str) -> Wrap:
    """Refuses torch's own captures in a job: they would take the process's generator, and fail or end with what other
    jobs do."""

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            job = current.job()
            if job is not None:
                raise RuntimeError(
                    f"job '{job.name}': {what} is not supported in a job; "
                    "job.graph(loss_fn) captures forward and backward"
                )
            return original(*args, **kwargs)

        return guarded

    return guard


class _RoutedGenerators:
    """Replaces torch.cuda.default_generators: inside a job, the generator of its device is the job's."""

    def __init__(self, defaults: tuple[torch.Generator, ...]) -> None:
        self._defaults = defaults

    def __len__(self) -> int:
        return len(self._defaults)

    def __getitem__(self, index: int) -> torch.Generator:
        job = current.job()
        own = None if job is None else job.handle.device_generator
        default = self._defaults[index]
        return own if own is not None and own.device == default.device else default
