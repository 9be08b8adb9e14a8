"""Waits of a job for its other ranks: while it waits in a collective, lower jobs may enter at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    waits = [
        (torch.distributed.Work, "wait"),
        (torch.distributed, "_broadcast_coalesced"),
        (torch.distributed, "_verify_params_across_processes"),
        (distributed_c10d, "_store_based_barrier"),
    ]
    for owner, name in waits:
        patches.replace(owner, name, _as_wait(getattr(owner, name)))
    kind = torch.nn.parallel.DistributedDataParallel
    patches.replace(kind, "_post_forward", _watched(kind._post_forward))


def _as_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        job = current.job()
        if job is None:
            return original(*args, **kwargs)
        job.handle.begin_wait("collective")
        try:
            return original(*args, **kwargs)
        finally:
            job.handle.end_wait()

    return wait


def _watched(post_forward: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel waits for all ranks at the end of the backward pass, in C++, in a callback of the
    autograd engine. Callbacks run in the order in which they were queued: ours, queued at the start of the pass, comes
    before that one, and the one that ours queues comes after it."""

    @functools.wraps(post_forward)
    def watched_post_forward(self: Any, output: Any) -> Any:
        output = post_forward(self, output)
        job = current.job()
        if job is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
            leaves = torch.utils._pytree.tree_leaves(output)
            first: Any = next((each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad), None)
            if first is not None:
                first.register_hook(functools.partial(_expect_wait, job))
        return output

    return watched_post_forward


class _Wait:
    """A wait for other ranks. Ends with `end`, or when nothing refers to it: the engine drops its callbacks when a
    backward pass fails."""

    def __init__(self, job: JobContext) -> None:
        self._job: JobContext | None = job
        job.handle.begin_wait("collective")

    def end(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.handle.end_wait()

    __del__ = end


def _expect_wait(job: JobContext, _gradient: torch.Tensor) -> None:
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(_Wait(job).end))
